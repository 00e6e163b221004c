"""Arrays of an npz file, read without pickle; what is wrong with the file is said in one line."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


def split_array_name(setting: str, text: str) -> tuple[Path, str]:
    """File and array of FILE or FILE:ARRAY, the array "" where none is named; `setting` is the key that was set so.

    A file whose own name has a colon is taken whole. Raises ValueError where there is no such file.
    """
    if Path(text).is_file():
        return Path(text), ""
    file, _, name = text.rpartition(":")
    if not file or not Path(file).is_file():
        raise ValueError(f"{setting}={text}: no such file, write FILE or FILE:ARRAY")
    return Path(file), name


def array_names(setting: str, file: Path) -> list[str]:
    """Names in the order of the file. Raises ValueError where it is not an npz."""
    with _opened(setting, file) as arrays:
        return list(arrays.files)


def read_array(setting: str, file: Path, name: str) -> NDArray[Any]:
    """One array. Raises ValueError where the file has none of that name, or none that can be read without pickle."""
    names = array_names(setting, file)
    if name not in names:
        raise ValueError(f"{setting}={file}: no array {name!r}, the file has {', '.join(names)}")
    with _opened(setting, file) as arrays:
        found: NDArray[Any] = np.asarray(arrays[name])
    return found


@contextmanager
def _opened(setting: str, file: Path) -> Iterator[np.lib.npyio.NpzFile]:
    if not zipfile.is_zipfile(file):
        raise ValueError(f"{setting}={file}: not an npz file")
    try:
        with np.load(file, allow_pickle=False) as arrays:
            yield arrays
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{setting}={file}: not an npz file of plain arrays ({error})") from None
