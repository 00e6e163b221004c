"""Arrays of npz files, read without pickle and only where their headers keep what they promise."""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from lzma import LZMAError
from math import prod
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ktbench.resources import is_file

# Of zip files and their compressions: damaged, encrypted, of an unknown kind.
_READ_ERRORS = (
    *(ArithmeticError, LookupError, OSError, ValueError, EOFError, RuntimeError),
    *(zipfile.BadZipFile, LZMAError, struct.error, zlib.error),
    *(SyntaxError, TokenError),  # of the header of an array, which is Python text
)
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
_MOST_BYTES = 1 << 30  # of an array; the longest recorded traces have 30 MB
_SHOWN = 200  # characters of another library's message


def split_array_name(setting: str, text: str) -> tuple[Path, str]:
    """File and array of FILE or FILE:ARRAY, the array "" where none is named; `setting` is the key that was set so.

    A file whose own name has a colon is taken whole. Raises ValueError where there is no such file.
    """
    if is_file(text):
        return Path(text), ""
    file, _, name = text.rpartition(":")
    if not file or not is_file(file):
        raise ValueError(f"{setting}={text}: no such file, write FILE or FILE:ARRAY")
    return Path(file), name


def array_names(setting: str, file: Path) -> list[str]:
    """Names in the order of the file. Raises ValueError where it is not an npz."""
    with _open(setting, file) as arrays:
        return list(arrays.files)


def read_array(setting: str, file: Path, name: str) -> NDArray[Any]:
    """One array. Raises ValueError where the file has none of that name, or none that can be read without pickle."""
    names = array_names(setting, file)
    if name not in names:
        raise ValueError(f"{setting}={file}: no array {name!r}, the file has {', '.join(names)}")
    with _open(setting, file) as arrays:
        _require_plain(arrays, name)
        found: NDArray[Any] = np.asarray(arrays[name])
    return found


def require_arrays(setting: str, text: str) -> None:
    """Raise ValueError where FILE or FILE:ARRAY is no npz whose arrays, or whose ARRAY, can be read without pickle."""
    file, name = split_array_name(setting, text)
    names = array_names(setting, file)
    with _open(setting, file) as arrays:
        for one in [name] if name in names else names:
            _require_plain(arrays, one)


def _require_plain(arrays: np.lib.npyio.NpzFile, name: str) -> None:
    """Raise ValueError for an array that is none of plain numbers or texts, by its header, before it takes memory."""
    archive = arrays.zip
    assert archive is not None  # it is where the file is open
    with archive.open(f"{name}.npy") as stream:
        version = np.lib.format.read_magic(stream)
        if version not in _HEADERS:
            raise ValueError(f"array {name!r} is of version {version}")
        shape, _, dtype = _HEADERS[version](stream)
        if dtype.hasobject:
            raise ValueError(f"array {name!r} holds Python objects, which are never unpickled")
        promised, held = prod(shape) * dtype.itemsize, archive.getinfo(f"{name}.npy").file_size - stream.tell()
    if promised != held or held > _MOST_BYTES:
        sizes = f"{promised:,} bytes, the file has {held:,}"
        raise ValueError(f"array {name!r} should have {sizes}, at most {_MOST_BYTES:,} are read")


@contextmanager
def _open(setting: str, file: Path) -> Iterator[np.lib.npyio.NpzFile]:
    if not zipfile.is_zipfile(file):
        raise ValueError(f"{setting}={file}: not an npz file")
    try:
        with file.open("rb") as stream, np.lib.npyio.NpzFile(stream, allow_pickle=False) as arrays:
            yield arrays
    except _READ_ERRORS as error:
        why = " ".join(str(error).split())[:_SHOWN]
        raise ValueError(f"{setting}={file}: not an npz file of plain arrays ({why})") from None
