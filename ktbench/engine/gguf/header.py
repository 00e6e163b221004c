"""The header of a GGUF file of version 3: its metadata, and where each tensor lies. Imports no PyTorch."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, Literal, get_args

from ktbench.spec.weights import BLOCK, BLOCK_BYTES

# Kinds of values by number (ggml's docs/gguf.md), as `struct` reads them.
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_LENGTH_BYTES = 8


class Cursor:
    """Reads little-endian values. Raises ValueError for one that does not fit, and for a kind that does not exist."""

    def __init__(self, data: mmap) -> None:
        self.at = 0
        self._data = data

    def take(self, count: int) -> bytes:
        """The next so many bytes."""
        self._require(count)
        self.at += count
        return self._data[self.at - count : self.at]

    def u32(self) -> int:
        """A number of 32 bits without sign."""
        return int.from_bytes(self.take(4), "little")

    def u64(self) -> int:
        """A number of 64 bits without sign."""
        return int.from_bytes(self.take(8), "little")

    def text(self) -> str:
        """A string: its length in bytes, then UTF-8."""
        try:
            return self.take(self.u64()).decode()
        except UnicodeDecodeError:
            raise ValueError("damaged, a string in its header is not UTF-8") from None

    def value(self) -> Any:
        """A value after its kind: a number, a string, or a list of either."""
        kind = self.u32()
        return self._array() if kind == _ARRAY else self._one(kind)

    def _one(self, kind: int) -> Any:
        return self.text() if kind == _STRING else self._numbers(kind, 1)[0]

    def _array(self) -> list[Any]:
        kind, count = self.u32(), self.u64()
        if kind != _STRING:
            return list(self._numbers(kind, count))
        self._require(count * _LENGTH_BYTES)
        return [self.text() for _ in range(count)]

    def _numbers(self, kind: int, count: int) -> tuple[Any, ...]:
        """Arrays of arrays, which the format has but no model uses, are refused like kinds that do not exist."""
        if kind not in _NUMBERS:
            raise ValueError(f"damaged, its header has a value of kind {kind}")
        self._require(count * struct.calcsize(f"<{_NUMBERS[kind]}"))
        form = f"<{count}{_NUMBERS[kind]}"
        return struct.unpack(form, self.take(struct.calcsize(form)))

    def _require(self, count: int) -> None:
        if count > len(self._data) - self.at:
            raise ValueError(f"truncated, its header does not fit in {len(self._data):,} bytes")


TensorType = Literal["F32", "F16", "BF16", "Q8_0", "Q4_0"]
KINDS: tuple[TensorType, ...] = get_args(TensorType)
# Weights that share a block, and its bytes (ggml-common.h).
_BLOCKS: Mapping[str, tuple[int, int]] = {
    "F32": (1, 4),
    "F16": (1, 2),
    "BF16": (1, 2),
    "Q8_0": (BLOCK, BLOCK_BYTES["q8_0"]),
    "Q4_0": (BLOCK, BLOCK_BYTES["q4_0"]),
}
# Names of all types by number (ggml.h).
_TYPES = {0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K"}
_TYPES |= {12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S"}
_TYPES |= {20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64"}
_TYPES |= {29: "IQ1_M", 30: "BF16", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4", 41: "Q1_0"}

_MOST_DIMENSIONS = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorInfo:
    """A tensor of `shape`, rows first as in PyTorch, whose bytes begin at `offset`."""

    name: str
    kind: TensorType
    shape: tuple[int, ...]
    offset: int

    @property
    def row_bytes(self) -> int:
        """Of one row along the last dimension."""
        weights, block_bytes = _BLOCKS[self.kind]
        return self.shape[-1] // weights * block_bytes

    @property
    def nbytes(self) -> int:
        """Of the whole tensor."""
        return math.prod(self.shape[:-1]) * self.row_bytes


def read_tensor(cursor: Cursor) -> TensorInfo:
    """The next entry. Raises ValueError for a type that the engine does not read, and for one that cannot be."""
    name, dimensions = cursor.text(), cursor.u32()
    if not 1 <= dimensions <= _MOST_DIMENSIONS:
        raise ValueError(f"damaged, tensor {name!r} has {dimensions} dimensions")
    shape = tuple(cursor.u64() for _ in range(dimensions))[::-1]
    tensor = TensorInfo(name=name, kind=_kind(cursor.u32(), name), shape=shape, offset=cursor.u64())
    if 0 in shape or shape[-1] % _BLOCKS[tensor.kind][0]:
        raise ValueError(f"damaged, tensor {name!r} of {tensor.kind} has the shape {shape}")
    return tensor


def _kind(number: int, name: str) -> TensorType:
    word = _TYPES.get(number, f"of type {number}")
    for kind in KINDS:
        if word == kind:
            return kind
    raise ValueError(f"tensor {name!r} is {word}, allowed are {', '.join(KINDS)}")


def placed(tensors: Sequence[TensorInfo], head_bytes: int, alignment: int, size: int) -> Iterator[TensorInfo]:
    """The same with offsets in the file of `size` bytes, where data follow a header of so many bytes.

    Data lie one after the other in the order of the header, each aligned (docs/gguf.md). Raises ValueError for a tensor
    that says otherwise, and where the file is shorter or longer.
    """
    begin, end = _aligned(head_bytes, alignment), head_bytes
    for tensor in tensors:
        offset = _aligned(end, alignment)
        if begin + tensor.offset != offset:
            raise ValueError(
                f"damaged, tensor {tensor.name!r} lies at {begin + tensor.offset:,}, expected at {offset:,}"
            )
        end = offset + tensor.nbytes
        yield replace(tensor, offset=offset)
    if size < end:
        raise ValueError(f"truncated, holds {size:,} of {end:,} bytes")
    if size > _aligned(end, alignment):
        raise ValueError(f"damaged, holds {size:,} bytes where its header promises {end:,}")


def _aligned(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment


_MAGIC, _VERSION, _ALIGNMENT = b"GGUF", 3, 32
_SPLIT = "split.count"


@dataclass(frozen=True, kw_only=True, slots=True)
class Header:
    """What a GGUF file says of itself: values by key, tensors by name."""

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, TensorInfo]


def read_header(path: str | Path) -> Header:
    """The header of a whole file whose tensors are all F32, F16, BF16, Q8_0 or Q4_0.

    Raises ValueError in one line that names the file: it is not there, not GGUF, of another version, truncated,
    damaged, one part of several, or holds a tensor of another type.
    """
    file = Path(path)
    if not file.is_file():
        raise ValueError(f"model.path={path}: no such file")
    size = file.stat().st_size
    try:
        if not size:
            raise ValueError("truncated, holds 0 bytes")
        with file.open("rb") as stream, mmap(stream.fileno(), 0, access=ACCESS_READ) as data:
            return _read(file, Cursor(data), size)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None


def _read(file: Path, cursor: Cursor, size: int) -> Header:
    if (magic := cursor.take(len(_MAGIC))) != _MAGIC:
        raise ValueError(f"not a GGUF file, begins with {magic!r}")
    if (version := cursor.u32()) != _VERSION:
        raise ValueError(f"GGUF of version {version}, allowed is {_VERSION}, little-endian")
    tensor_count, field_count = cursor.u64(), cursor.u64()
    metadata = _distinct((cursor.text(), cursor.value()) for _ in range(field_count))
    if (parts := metadata.get(_SPLIT, 0)) not in (0, 1):
        raise ValueError(f"is one of {parts!r} parts; join them with llama-gguf-split --merge")
    listed = [read_tensor(cursor) for _ in range(tensor_count)]
    tensors = placed(listed, cursor.at, _alignment(metadata), size)
    return Header(path=file, metadata=metadata, tensors=_distinct((tensor.name, tensor) for tensor in tensors))


def _distinct(entries: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in entries:
        if name in found:
            raise ValueError(f"damaged, its header has {name!r} twice")
        found[name] = value
    return found


def _alignment(metadata: Mapping[str, Any]) -> int:
    alignment = metadata.get("general.alignment", _ALIGNMENT)
    if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
        raise ValueError(f"damaged, general.alignment={alignment!r} is no power of two")
    return alignment
