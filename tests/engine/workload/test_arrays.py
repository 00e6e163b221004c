"""Arrays of npz files are read without pickle, and only where their headers keep what they promise."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ktbench.engine.workload.arrays import array_names, read_array, require_arrays
from ktbench.run.request import plan_request, read_request
from ktbench.spec.errors import RequestError

SETTING = "workload.trace"
PLACED = ("engine.roles=split", "engine.placement.policy=frequency", "engine.placement.ratio=0.5")
COUNTS = np.arange(16, dtype=np.int64).reshape(2, 8)


def header(descr: str, shape: str) -> bytes:
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    text += b" " * (63 - (10 + len(text)) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


def packed(file: Path, member: bytes, kind: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(file, "w", kind) as archive:
        archive.writestr("decode.npy", member)
    return file


BAD = {
    "objects": header("'|O'", "(1,)") + b"\x80\x04N.",
    "objects in a structure": header("[('a', '|O')]", "(1,)") + b"\x80\x04N.",
    "more than memory": header("'<i8'", "(1000000000000, 128)"),
    "more than numbers have": header("'<i8'", "(4611686018427387904, 4611686018427387904)"),
    "fewer than none": header("'<i8'", "(-1, 8)") + COUNTS.tobytes(),
    "fewer than promised": header("'<i8'", "(3, 8)") + COUNTS.tobytes(),
    "more than promised": header("'<i8'", "(1, 8)") + COUNTS.tobytes(),
    "no type": header("'?!'", "(2, 8)") + COUNTS.tobytes(),
    "no shape": header("'<i8'", "'many'") + COUNTS.tobytes(),
    "nested": header("'<i8'", "(" * 3000),
    "another version": b"\x93NUMPY\x09\x00" + header("'<i8'", "(2, 8)")[8:],
    "no header": b"",
    "no array": b"text",
}


@pytest.mark.parametrize("what", BAD)
def test_an_array_that_cannot_be_read_is_refused_in_one_line(what: str, tmp_path: Path) -> None:
    file = packed(tmp_path / "trace.npz", BAD[what])
    for read in (lambda: read_array(SETTING, file, "decode"), lambda: require_arrays(SETTING, str(file))):
        with pytest.raises(ValueError) as refused:
            read()
        assert str(refused.value).startswith(f"{SETTING}={file}: not an npz file of plain arrays (")
        assert "\n" not in str(refused.value)


def test_a_small_archive_of_a_large_array_is_refused(tmp_path: Path) -> None:
    zeros = header("'|u1'", f"({2**31},)") + bytes(2**20)
    file = packed(tmp_path / "trace.npz", zeros, zipfile.ZIP_DEFLATED)
    with pytest.raises(ValueError, match="at most 1,073,741,824 are read"):
        require_arrays(SETTING, str(file))


def test_nothing_is_unpickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pickle.load", lambda *_, **__: pytest.fail("unpickled"))
    np.savez(tmp_path / "trace.npz", decode=np.array([{"a": 1}, None], dtype=object), counts=COUNTS)
    with pytest.raises(ValueError, match="Python objects, which are never unpickled"):
        require_arrays(SETTING, str(tmp_path / "trace.npz"))
    require_arrays(SETTING, f"{tmp_path / 'trace.npz'}:counts")


def test_a_name_that_no_file_has_is_refused(tmp_path: Path) -> None:
    for name in (str(tmp_path), str(tmp_path / "none"), "x" * 300, f"{'x' * 300}:decode"):
        with pytest.raises(ValueError, match=f"^{SETTING}="):
            require_arrays(SETTING, name)


@given(st.lists(st.tuples(st.integers(0, 10**4), st.integers(0, 255)), min_size=1, max_size=3), st.booleans())
def test_a_damaged_archive_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, bytes_changed: list[tuple[int, int]], is_packed: bool
) -> None:
    file = tmp_path_factory.mktemp("damaged") / "trace.npz"
    (np.savez_compressed if is_packed else np.savez)(file, decode=COUNTS)
    content = bytearray(file.read_bytes())
    for place, byte in bytes_changed:
        content[place % len(content)] = byte
    file.write_bytes(content)
    try:
        for name in array_names(SETTING, file):
            read_array(SETTING, file, name)
    except ValueError as error:
        assert str(error).startswith(f"{SETTING}={file}: ")
        assert "\n" not in str(error)


@pytest.mark.parametrize("machine", [[], ["machine=paper_a100"]])
@pytest.mark.parametrize(
    "words",
    [
        ["workload=layer", "workload.routing=recorded", "workload.trace=FILE"],
        [*PLACED, "engine.placement.profile=FILE"],
    ],
)
def test_a_request_that_names_one_is_refused(words: list[str], machine: list[str], tmp_path: Path) -> None:
    file = packed(tmp_path / "trace.npz", BAD["objects"])
    named = [word.replace("FILE", str(file)) for word in words]
    with pytest.raises(RequestError, match=r"trace\.npz") as refused:
        plan_request(read_request(["model=tiny", *named, *machine]))
    assert "\n" not in str(refused.value)
