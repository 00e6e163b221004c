"""The header of a GGUF file of version 3: its metadata, and where each tensor lies. Imports no PyTorch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

from ktbench.engine.gguf.cursor import Cursor
from ktbench.engine.gguf.tensors import TensorInfo, placed, read_tensor

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
