"""Identity of the code that measures: the same in a checkout and in the wheel built from it."""

from __future__ import annotations

import hashlib
import importlib
import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import ktbench
from ktbench.resources import data_folder, is_checkout
from ktbench.spec.wire import digest


@dataclass(frozen=True, kw_only=True, slots=True)
class Extension:
    """The loaded `ktbench._kernels`, or the one-line reason why there is none."""

    module: ModuleType | None
    reason: str = ""


def load_extension() -> Extension:
    """Import the extension."""
    try:
        return Extension(module=importlib.import_module("ktbench._kernels"))
    except ImportError as error:
        first = str(error).splitlines()[0]
        mend = "run python3 bootstrap.py" if is_checkout() else "install the wheel of this Python again"
        return Extension(module=None, reason=f"the kernel extension is not built: {mend} ({first})")


def isa_reasons(extension: Extension) -> dict[str, str]:
    """Instruction set -> "" if this machine grants it, else the reason. Empty without the extension."""
    return {} if extension.module is None else dict(extension.module.grants())


# Reports are left out: they do not affect measurements.
_DATA_FOLDERS = ("conf", "ablations", "evals")
_CODE = (*_DATA_FOLDERS, "ktbench", "kernels")  # folders of a checkout
_PACKAGE = Path(ktbench.__file__).parent
_BUILD = "_build.json"  # kernels/cmake/build_info.cmake writes it


@dataclass(frozen=True, kw_only=True, slots=True)
class Commit:
    """The checkout's commit, and whether tracked or new files differ from it."""

    sha: str
    dirty: bool

    def __str__(self) -> str:
        return f"{self.sha[:12]}{' with changes' if self.dirty else ''}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Build:
    """Commit and tools of the kernel build; no commit without git, as in an unpacked sdist."""

    commit: Commit | None
    tools: str


def code_id(extension: Extension) -> str:
    """Digest of the package's Python files, the YAML of its data folders and the kernel build."""
    files = {name: hashlib.blake2b(path.read_bytes()).hexdigest() for name, path in code_files()}
    build = None if extension.module is None else extension.module.build_id()
    return digest({"files": files, "kernels": build})


def code_files() -> Iterator[tuple[str, Path]]:
    """(name, path) of every file that the identity covers; names do not depend on the location of the package.

    Hidden files are left out: nothing reads them, and editors keep their locks and backups there.
    """
    for name, path in _visible(_PACKAGE, "*.py"):
        if name.partition("/")[0] not in (*_DATA_FOLDERS, "reports"):
            yield name, path
    for folder in map(data_folder, _DATA_FOLDERS):
        yield from ((f"{folder.name}/{name}", path) for name, path in _visible(folder, "*.yaml"))


def _visible(folder: Path, pattern: str) -> Iterator[tuple[str, Path]]:
    for path in folder.rglob(pattern):
        if not path.name.startswith("."):
            yield path.relative_to(folder).as_posix(), path


def read_commit(checkout: Path = _PACKAGE.parent) -> Commit | None:
    """The commit of a checkout, or the one a wheel was built from; None without git or a commit."""
    if not (checkout / ".git").exists():
        build = read_build(checkout / _PACKAGE.name)
        return build.commit if build else None
    try:
        sha, status = (_git(checkout, *words) for words in (("rev-parse", "HEAD"), ("status", "--porcelain")))
    except (OSError, subprocess.CalledProcessError):
        return None
    return Commit(sha=sha, dirty=bool(status))


MOST_CHANGES = 1 << 20  # bytes


def read_changes(checkout: Path = _PACKAGE.parent) -> bytes:
    """The checkout's changes relative to its commit, for `git apply`: tracked files, and new files of the code.

    At most 1 MiB, with a last line that says so if there is more; empty without changes or without git.
    """
    if not (checkout / ".git").exists():
        return b""
    try:
        new = _git(checkout, "ls-files", "--others", "--exclude-standard", "-z", "--", *_CODE).split("\0")
        diff = _diff(checkout, "HEAD")
        for name in filter(None, new):
            if len(diff) <= MOST_CHANGES:
                diff += _diff(checkout, "--no-index", "--", "/dev/null", name)
    except (OSError, subprocess.CalledProcessError):
        return b""
    return diff if len(diff) <= MOST_CHANGES else diff[:MOST_CHANGES] + b"\n# cut: the changes are larger\n"


def _diff(checkout: Path, *words: str) -> bytes:
    """Raises CalledProcessError unless git has compared: it exits with 1 if files outside the repository differ."""
    command = ["git", "-C", str(checkout), "diff", "--no-color", "--no-ext-diff", "--no-textconv", *words]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode > 1:
        done.check_returncode()
    return done.stdout


def read_build(folder: Path) -> Build | None:
    """How the extension in that folder was built; None if it was not recorded."""
    try:
        fields = json.loads((folder / _BUILD).read_bytes())
    except FileNotFoundError:
        return None
    return Build(commit=Commit(**fields["commit"]) if fields["commit"] else None, tools=fields["tools"])


def _git(checkout: Path, *words: str) -> str:
    command = ["git", "-C", str(checkout), *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
