"""Where data folders are, inside an installed package or beside it in a checkout, and programs in a build."""

from __future__ import annotations

import shutil
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
_SHIPPED = "evals"


def data_folder(name: str) -> Path:
    """Folder `conf`, `ablations`, `evals` or `reports` of this installation."""
    packaged = _PACKAGE / name
    return packaged if packaged.is_dir() else _PACKAGE.parent / name


def checkpoint_folder(path: str) -> Path:
    """The folder of a checkpoint: `evals/NAME` is one that ships, wherever ktbench was started."""
    shipped, _, name = path.partition("/")
    return data_folder(_SHIPPED) / name if shipped == _SHIPPED and not Path(path).exists() else Path(path)


def checkpoint_name(path: str) -> str:
    """What a checkpoint is called: one that ships by its name, another by its path."""
    return path.removeprefix(f"{_SHIPPED}/")


def built_program(name: str, folder: str) -> str | None:
    """A program in `folder`, in that of a build or of a checkout that was built in `build`; None where it has none."""
    places = (Path(folder, inner).absolute() for inner in (".", "bin", "build/bin"))
    return next((found for place in places if (found := shutil.which(name, path=str(place)))), None)


def checkout() -> Path:
    """The folder that holds the package: the checkout, or where packages are installed."""
    return _PACKAGE.parent
