"""Recorded routing and activation profiles: arrays of any content, headers that lie, damaged archives."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.fuzz.child import ktbench

_EXPERTS, _TOP_K = 8, 2  # of the tiny model
_LAYER = ("workload=layer", "workload.routing=recorded", "workload.trace=FILE")
_PLACED = ("engine.placement.policy=frequency", "engine.placement.ratio=0.5", "engine.placement.profile=FILE")
_COMMANDS = (
    ("run", "machine=paper_a100", *_LAYER),
    ("plan", *_LAYER),
    ("run", "machine=paper_a100", "workload=prefill", "workload.routing=recorded", "workload.trace=FILE"),
    ("run", "machine=paper_a100", *_PLACED),
    ("plan", "model.layers=2", *_PLACED),
)
_DTYPES = (
    "<i8",
    "<i4",
    "|u1",
    ">i8",
    "<f8",
    "|O",
    "|b1",
    "<c16",
    "<M8[s]",
    "|S5",
    "<U3",
    "|V7",
    "<i8,<f4",
    "[('a','O')]",
)
_SHAPES: tuple[list[int], ...] = (
    [],
    [0],
    [8],
    [2, 8],
    [4, 2, 2],
    [3, 8, 1],
    [10**12, 8],
    [-1, 8],
    [2**62, 8],
    [1] * 40,
)
_NAMES = ("decode", "decode_x", "experts", "counts", "about", "", "a/b", "../x", "é", "decode.npy")
_ABOUT = ("{}", "[", "null", '{"model": 3}', "[" * 5000, "1e999", "\\ud800")


def inputs() -> st.SearchStrategy[Any]:
    """A command, the members of an archive, and bytes of it that are changed."""
    member = st.fixed_dictionaries(
        {
            "name": st.sampled_from(_NAMES),
            "dtype": st.sampled_from(_DTYPES) | st.just("<i8"),
            "shape": st.sampled_from(_SHAPES) | st.just([2, 8]) | st.just([4, 2, 2]),
            "content": st.sampled_from(["right", "zeros", "negative", "large", "none", "short", "objects"]),
        }
    )
    about = st.fixed_dictionaries({"name": st.just("about"), "text": st.sampled_from(_ABOUT)})
    raw = st.fixed_dictionaries({"name": st.sampled_from(_NAMES), "raw": st.binary(max_size=40).map(bytes.hex)})
    edits = st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)).map(list), max_size=4)
    return st.fixed_dictionaries(
        {
            "words": st.sampled_from(_COMMANDS).map(list),
            "members": st.lists(st.one_of(member, member, about, raw), max_size=3),
            "packing": st.sampled_from(["stored", "deflated", "lzma", "bz2"]),
            "edits": st.just([]) | edits,
            "cut": st.none() | st.integers(0, 10**6),
            "array": st.none() | st.sampled_from(_NAMES),
        }
    )


def carry_out(data: Any) -> int:
    """The command on the archive."""
    content = bytearray(_archive(data))
    for place, byte in data["edits"] if content else ():
        content[place % len(content)] = byte
    if data["cut"] is not None:
        del content[data["cut"] % (len(content) + 1) :]
    Path("trace.npz").write_bytes(content)
    name = "trace.npz" if data["array"] is None else f"trace.npz:{data['array']}"
    verb, *words = [word.replace("FILE", f"'{name}'") for word in data["words"]]
    return ktbench(verb, "model=tiny", *words)


def _archive(data: Any) -> bytes:
    kinds = {"stored": zipfile.ZIP_STORED, "deflated": zipfile.ZIP_DEFLATED, "lzma": zipfile.ZIP_LZMA}
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", kinds.get(data["packing"], zipfile.ZIP_BZIP2)) as archive:
        for member in data["members"]:
            archive.writestr(f"{member['name']}.npy", _member(member))
    return stream.getvalue()


def _member(member: Any) -> bytes:
    if "raw" in member:
        return bytes.fromhex(member["raw"])
    if "text" in member:
        return _written(np.array(member["text"]))
    if member["content"] == "objects":
        return _written(np.array([{"a": 1}, None], dtype=object))
    # A header may promise what is not there.
    shape = tuple(member["shape"])
    dtype = member["dtype"] if member["dtype"].startswith("[") else repr(member["dtype"])
    header = f"{{'descr': {dtype}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    header += b" " * (63 - (10 + len(header)) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + _content(member, shape)


def _content(member: Any, shape: tuple[int, ...]) -> bytes:
    count = 1
    for size in shape:
        count *= size
    if not 0 < count <= 10_000:
        return b""
    values = {"zeros": 0, "negative": -1, "large": 2**40}
    if member["content"] in values:
        return np.full(count, values[member["content"]], np.int64).tobytes()
    if member["content"] == "right":
        ids = np.array([[n % _EXPERTS, (n + 1) % _EXPERTS] for n in range(count)]).reshape(-1)[:count]
        return (ids if len(shape) == 3 else np.arange(1, count + 1)).astype(np.int64).tobytes()
    return b"" if member["content"] == "none" else b"\x01" * 7


def _written(array: NDArray[Any]) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array(stream, array, allow_pickle=True)
    return stream.getvalue()
