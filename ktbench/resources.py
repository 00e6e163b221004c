"""Where the data folders are: inside an installed package, or beside it in a checkout."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def data_folder(name: str) -> Path:
    """Folder `conf`, `ablations` or `reports` of this installation."""
    packaged = _PACKAGE / name
    return packaged if packaged.is_dir() else _PACKAGE.parent / name


def checkout() -> Path:
    """The folder that holds the package: the checkout, or where packages are installed."""
    return _PACKAGE.parent
