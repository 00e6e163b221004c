"""Where data folders are, inside an installed package or beside it in a checkout; what installs more; text files."""

from __future__ import annotations

import os
import shlex
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

_PACKAGE = Path(__file__).resolve().parent
_SHIPPED = "evals"
DISTRIBUTION = "ktbench-moe"  # what pip knows us by


def data_folder(name: str) -> Path:
    """Folder `conf`, `ablations`, `evals` or `reports` of this installation."""
    packaged = _PACKAGE / name
    return packaged if packaged.is_dir() else _PACKAGE.parent / name


def cache_folder() -> Path:
    """Where what can be measured or compiled anew is kept for the user; a temporary folder for one without a home."""
    own, caches = os.environ.get("KTBENCH_CACHE"), os.environ.get("XDG_CACHE_HOME")
    if own:
        return Path(own)
    try:
        return Path(caches or Path.home() / ".cache") / "ktbench"
    except RuntimeError:
        return Path(tempfile.gettempdir(), f"ktbench-{os.getuid()}")


# Groups whose options are files outside `conf`, and the folders that have them.
OUTSIDE_CONF = {"ablation": "ablations", "suite": "evals"}


def group_folder(group: str) -> Path:
    """The folder of the files that are the options of a group of the configuration."""
    return data_folder(OUTSIDE_CONF[group]) if group in OUTSIDE_CONF else data_folder("conf") / group


def option_files(group: str) -> dict[str, Path]:
    """The file of each option of a group by its name, in order; ablations of a folder as `FOLDER/NAME`."""
    files = files_below(group_folder(group))
    return files if group == "ablation" else {name: path for name, path in files.items() if "/" not in name}


def files_below(folder: Path) -> dict[str, Path]:
    """The YAML files in a folder and below by their names, `FOLDER/NAME` for those below, in order."""
    files = {path.relative_to(folder).with_suffix("").as_posix(): path for path in folder.rglob("*.yaml")}
    return dict(sorted(files.items()))


@cache
def shipped(path: str) -> Any:
    """Content of the YAML file `conf/PATH.yaml`, which is not to be changed; empty where there is none."""
    import yaml

    file = data_folder("conf") / f"{path}.yaml"
    return yaml.safe_load(file.read_text(encoding="utf-8")) if file.is_file() else {}


def checkpoint_folder(path: str) -> Path:
    """The folder of a checkpoint: `evals/NAME` is one that ships, wherever ktbench was started."""
    return shipped_path(path, _SHIPPED)


def shipped_path(path: str, folder: str) -> Path:
    """What a request names: `FOLDER/NAME` of this data folder ships, unless there is such a path where ktbench runs."""
    first, _, name = path.partition("/")
    return data_folder(folder) / name if first == folder and not Path(path).exists() else Path(path)


def checkpoint_name(path: str) -> str:
    """What a checkpoint is called: one that ships by its name, another by its path."""
    return path.removeprefix(f"{_SHIPPED}/")


def built_program(name: str, folder: str) -> str | None:
    """A program in `folder`, in that of a build or of a checkout that was built in `build`; None where it has none."""
    places = (Path(folder, inner).absolute() for inner in (".", "bin", "build/bin"))
    return next((found for place in places if (found := shutil.which(name, path=str(place)))), None)


def is_file(path: str | Path) -> bool:
    """Whether there is such a file. There is none of a name that no file can have, such as one of 300 letters."""
    try:
        return Path(path).is_file()
    except OSError:
        return False


def read_text(file: str | Path, where: str, most_bytes: int) -> str:
    """Text of a file that a request names, of at most so many bytes. Raises ValueError in a line, headed by `where`."""
    try:
        with Path(file).open("rb") as stream:
            content = stream.read(most_bytes + 1)
    except OSError as error:
        raise ValueError(f"{where}: {error.strerror}") from None
    except ValueError:
        raise ValueError(f"{where}: is no name of a file") from None
    if len(content) > most_bytes:
        raise ValueError(f"{where}: is longer than {most_bytes:,} bytes")
    try:
        return content.decode()
    except ValueError:
        raise ValueError(f"{where}: is not UTF-8 text") from None


def checkout() -> Path:
    """The folder that holds the package: the checkout, or where packages are installed."""
    return _PACKAGE.parent


def is_checkout() -> bool:
    """Whether the package lies in a checkout, as with an editable installation, not where a wheel was installed."""
    return (checkout() / "pyproject.toml").is_file()


def in_checkout(command: str) -> str:
    """A command of the user's, with the word where it works if that is not here: nox needs its file."""
    return command if is_checkout() or not command.startswith("nox ") else f"{command} in a clone of ktbench"


def install_command(extra: str) -> str:
    """The command that brings the packages of an extra of `pyproject.toml`, from any folder.

    It asks no index for us: a checkout is named by its path, and pip takes an installed wheel as it is.
    """
    if is_checkout():
        return f"python -m pip install -e {shlex.quote(f'{checkout()}[{extra}]')}"
    return f"python -m pip install '{DISTRIBUTION}[{extra}]'"
