"""Sets up an environment for ktbench and runs a command in it: `python3 bootstrap.py COMMAND [ARGS…]`.

Standard library only. Installs into the active virtual or conda environment, else into `.venv` beside this file.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

if sys.version_info < (3, 11):  # noqa: UP036 - this file is what tells people so
    sys.stderr.write(f"bootstrap: Python {sys.version.split()[0]} is too old: run it with Python 3.11 or newer\n")
    raise SystemExit(2)

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TextIO

ROOT = Path(__file__).resolve().parent
STAMP = "ktbench-bootstrap.stamp"
# Marks every program that a set-up starts, with its checkout.
TAG = "KTBENCH_SETUP"
# Without a GPU the version is fixed: only builds whose name ends in +cpu are sure to come without CUDA.
CPU_TORCH = "2.13.0"
USAGE = "usage: python3 bootstrap.py [COMMAND [ARGS...]]"
_TAIL_LINES = 25

Run = Callable[[Sequence[str]], "subprocess.CompletedProcess[str]"]


class SetupError(Exception):
    """Why the environment cannot be set up: one line, and the end of a program's output where there is one."""

    def __init__(self, line: str, output: str = "") -> None:
        super().__init__("\n".join([*output.splitlines()[-_TAIL_LINES:], f"bootstrap: {line}"]))


@dataclass(frozen=True)
class Host:
    """What decides how to set up: the interpreter we run on, the compiler, the GPU."""

    prefix: Path
    base_prefix: Path
    executable: str
    base_executable: str
    has_compiler: bool
    has_gpu: bool


def this_host() -> Host:
    """The machine and interpreter at hand."""
    return Host(
        prefix=Path(sys.prefix),
        base_prefix=Path(sys.base_prefix),
        executable=sys.executable,
        base_executable=getattr(sys, "_base_executable", sys.executable),
        has_compiler=any(map(shutil.which, ("g++", "clang++", "c++"))),
        has_gpu=Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") is not None,
    )


def run_quietly(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a program and keep what it prints, stdout and stderr apart."""
    return subprocess.run(list(command), capture_output=True, text=True, check=False)


def say(line: str) -> None:
    """Progress, on stderr."""
    print(f"bootstrap: {line}", file=sys.stderr, flush=True)


# Seconds between two lines of progress: on a terminal, where one replaces the other, and elsewhere.
_EVERY_S = {True: 1.0, False: 30.0}


@contextlib.contextmanager
def progress(what: str, count: Callable[[], str]) -> Iterator[None]:
    """Inside, say now and then how long `what` takes, and what `count` says, such as how much is done."""
    replaces, start_s, ended = sys.stderr.isatty(), time.monotonic(), threading.Event()

    def show() -> None:
        while not ended.wait(_EVERY_S[replaces]):
            minutes, seconds = divmod(round(time.monotonic() - start_s), 60)
            line = f"bootstrap: {what}, {minutes}:{seconds:02}{count()}"
            print(f"\r\x1b[K{line}" if replaces else line, end="" if replaces else "\n", file=sys.stderr, flush=True)

    thread = threading.Thread(target=show, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        if replaces:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Compiled:
    """How many files of the kernels a build below `folder` has compiled since `start` (seconds, as files have it)."""

    folder: Path
    start: float

    def __call__(self) -> str:
        """`, 12 of at most 87 files compiled`: others may be up to date; empty before the first."""
        builds = [*self.folder.glob("*/build.ninja")]
        objects = [one for build in builds for one in build.parent.rglob("*.o")]
        done = sum(one.stat().st_mtime >= self.start for one in objects)
        if not done:
            return ""
        total = sum(line.startswith("build ") and ".o: CXX_COMPILER" in line for line in _lines_of(builds))
        return f", {done} of at most {max(total, done)} files compiled"


def _lines_of(paths: Sequence[Path]) -> Iterator[str]:
    for path in paths:
        yield from path.read_text(errors="replace").splitlines()


@dataclass(frozen=True)
class Setup:
    """Brings one environment up to date. `run` starts programs; `root` is the checkout that is installed."""

    host: Host
    run: Run = run_quietly
    root: Path = ROOT

    @property
    def active(self) -> bool:
        """Whether we run inside an environment of the user's: a virtual one, or a conda one that is not its base."""
        host = self.host
        conda = (host.prefix / "conda-meta").is_dir() and not (host.prefix / "condabin").is_dir()
        return conda or host.prefix != host.base_prefix

    @property
    def prefix(self) -> Path:
        """The environment to install into."""
        return self.host.prefix if self.active else self.root / ".venv"

    @property
    def python(self) -> str:
        """Its interpreter."""
        return self.host.executable if self.active else str(self.prefix / "bin" / "python")

    @property
    def stamp(self) -> Path:
        """Holds the state of the last set-up that succeeded."""
        return self.prefix / STAMP

    def bring_up_to_date(self) -> None:
        """Create and install what is missing; quick when nothing changed. Raises SetupError."""
        if self._up_to_date():
            return
        if not self.host.has_compiler:
            raise SetupError("no C++ compiler: install one first (Debian, Ubuntu: apt install g++)")
        with self._alone():
            if not self.active:
                self._create()
            self._ensure_pip()
            self._ensure_torch()
            self._install_project()
            _write(self.stamp, self._state())
        say(f"ready: {self.prefix}")

    @property
    def journal(self) -> Path:
        """Locked while a set-up is at work, empty after one that has ended."""
        return self.root / "build" / "ktbench-bootstrap.lock"

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """No other set-up of this checkout is at work, and what one that was killed has left is mended."""
        self.journal.parent.mkdir(exist_ok=True)
        with self.journal.open("a+") as journal:
            try:
                fcntl.flock(journal, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise SetupError(f"another set-up is at work in {self.root}: wait until it has ended") from None
            if os.fstat(journal.fileno()).st_size:
                self._mend(journal)
            journal.truncate(0)
            journal.write("\n".join(["incomplete before:", *map(str, self._incomplete()), ""]))
            journal.flush()
            os.environ[TAG] = str(self.root)
            yield
            journal.truncate(0)

    def _mend(self, journal: TextIO) -> None:
        """End the programs of the set-up that was killed, and forget what they had not installed completely.

        What is incomplete is installed anew; a package that was so before the set-up began is not ours to judge.
        """
        say("the last set-up did not complete: going on from there")
        end_programs_of(self.root)
        journal.seek(0)
        before = journal.read().splitlines()
        for package in self._incomplete():
            if str(package) not in before:
                shutil.rmtree(package)
                shutil.rmtree(package.with_name(package.name.partition("-")[0]), ignore_errors=True)

    def _incomplete(self) -> list[Path]:
        """Packages that lack a file which an installer writes after all others."""
        packages = self.prefix.glob("lib/python3*/site-packages/*.dist-info")
        return [one for one in packages if not all((one / name).is_file() for name in ("INSTALLER", "RECORD"))]

    def _up_to_date(self) -> bool:
        return Path(self.python).exists() and self.stamp.is_file() and self.stamp.read_text() == self._state()

    def _state(self) -> str:
        """Digest of all that an editable install depends on: sources that get built, dependencies, the interpreter."""
        cfg = self.prefix / "pyvenv.cfg"
        state = hashlib.sha256(str(self.root).encode())
        state.update(cfg.read_bytes() if cfg.is_file() else sys.version.encode())
        kernels = (path for path in (self.root / "kernels").rglob("*") if path.is_file())
        for path in (self.root / "pyproject.toml", *sorted(kernels)):
            state.update(f"{path.relative_to(self.root)}\0{path.stat().st_size}\0".encode())
            state.update(path.read_bytes())
        return state.hexdigest()

    def _create(self) -> None:
        is_whole = (self.prefix / "bin" / "activate").is_file()  # among the last files that venv writes
        if is_whole and Path(self.python).exists() and self.run([self.python, "-c", ""]).returncode == 0:
            return
        say(f"creating {self.prefix}")
        # Without pip, for Debian's Python has venv but no ensurepip unless python3-venv is installed.
        command = [self.host.executable, "-m", "venv", "--clear", "--without-pip", str(self.prefix)]
        if self.run(command).returncode:
            raise SetupError("this Python cannot make virtual environments: apt install python3-venv")

    def _ensure_pip(self) -> None:
        if self.run([self.python, "-m", "pip", "--version"]).returncode == 0:
            return
        if self.run([self.python, "-m", "ensurepip"]).returncode == 0:
            return
        # `--python` comes before the command and makes the system's pip work inside the environment (pip >= 22.3).
        command = [self.host.base_executable, "-m", "pip", "--python", self.python, "install", "--quiet", "pip"]
        if self.run(command).returncode:
            raise SetupError("neither pip nor ensurepip is to be had: apt install python3-venv")

    def _ensure_torch(self) -> None:
        if self._installed_torch():
            return
        if self.host.has_gpu:  # pip would take the newest build, which the driver may not run
            self._torch_by_uv(f"{self._wanted_torch()} for the NVIDIA driver", "auto", self._wanted_torch())
        elif f"{CPU_TORCH}+cpu" in self._offered_torch():
            self._pip(f"installing torch {CPU_TORCH}+cpu", f"torch=={CPU_TORCH}+cpu")
        else:
            self._torch_by_uv(f"torch {CPU_TORCH} without CUDA", "cpu", f"torch=={CPU_TORCH}")

    def _torch_by_uv(self, what: str, backend: str, requirement: str) -> None:
        self._pip("installing uv, which chooses among PyTorch's builds", "uv")
        uv = [self.python, "-m", "uv", "pip", "install", "--python", self.python]
        self._do(f"installing {what}", [*uv, f"--torch-backend={backend}", requirement])

    def _installed_torch(self) -> str:
        """Version of the environment's torch, empty where there is none."""
        code = "import importlib.metadata as m; print(m.version('torch'))"
        answer = self.run([self.python, "-c", code])
        return answer.stdout.strip() if answer.returncode == 0 else ""

    def _wanted_torch(self) -> str:
        """The requirement in pyproject.toml."""
        found = re.search(r'^\s*"(torch\b[^"]*)"', (self.root / "pyproject.toml").read_text(), re.MULTILINE)
        return found.group(1) if found else "torch"

    def _offered_torch(self) -> list[str]:
        """Versions that pip's configured sources offer here.

        Not by `pip install --dry-run`: that downloads the whole wheel, which carries CUDA where none ends in +cpu. A
        pip that cannot answer leads to uv, never to CUDA.
        """
        answer = self.run([self.python, "-m", "pip", "index", "versions", "torch"])
        return re.findall(r"\d[\w.+]*", answer.stdout) if answer.returncode == 0 else []

    def _install_project(self) -> None:
        # The torch that is there stays, or pip says why it cannot: another one might bring CUDA with it.
        kept = self.prefix / "ktbench-constraints.txt"
        _write(kept, f"torch=={self._installed_torch()}\n")
        self._pip("building and installing ktbench", "--constraint", str(kept), "--editable", f"{self.root}[dev]")

    def _pip(self, what: str, *arguments: str) -> None:
        self._do(what, [self.python, "-m", "pip", "install", "--quiet", *arguments])

    def _do(self, what: str, command: Sequence[str]) -> None:
        say(f"{what} (may take minutes)")
        start_s = time.monotonic()
        with progress(what, Compiled(self.root / "build", time.time())):
            done = self.run(command)
        if done.returncode:
            raise SetupError(f"{what} failed: {' '.join(command)}", done.stdout + done.stderr)
        say(f"done in {time.monotonic() - start_s:.0f} s")


def _write(path: Path, text: str) -> None:
    """Whole or not at all. Raises OSError with the name of the file."""
    part = path.with_name(f".{path.name}.part")
    try:
        part.write_text(text)
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from None


def end_programs_of(root: Path) -> None:
    """End what set-ups of a checkout have started and left running: an installer outlives whoever started it."""
    tag = f"{TAG}={root}".encode()
    for _ in range(100):
        left = [process for process in Path("/proc").glob("[0-9]*") if tag in _environment(process)]
        for process in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(process.name), signal.SIGKILL)
        if not left:
            return
        time.sleep(0.05)
    raise SetupError(f"processes of a set-up that was killed do not end: {', '.join(one.name for one in left)}")


def _environment(process: Path) -> list[bytes]:
    """The variables that a process was started with; none where it is another user's, or has ended."""
    with contextlib.suppress(OSError):
        return (process / "environ").read_bytes().split(b"\0")
    return []


def child_environment(setup: Setup) -> dict[str, str]:
    """Our own variables with the environment's programs first on the PATH."""
    path = f"{Path(setup.python).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    activated = {} if setup.active else {"VIRTUAL_ENV": str(setup.prefix)}
    own = {name: value for name, value in os.environ.items() if name != TAG}
    return {**own, **activated, "PATH": path}


def main(arguments: Sequence[str]) -> int:
    """Set up, then become COMMAND; returns only without one, or when something is wrong."""
    if arguments and arguments[0].startswith("-"):
        print(USAGE, file=sys.stdout if arguments[0] in ("-h", "--help") else sys.stderr)
        return 0 if arguments[0] in ("-h", "--help") else 2
    setup = Setup(this_host())
    try:
        setup.bring_up_to_date()
        return become(setup, arguments)
    except SetupError as error:
        print(error, file=sys.stderr)
        return 2
    except OSError as error:
        where = error.filename or setup.journal  # writing to an open file names none
        say(f"{where}: {error.strerror}; mend that, then repeat the command")
        return 2
    except KeyboardInterrupt:
        say("interrupted: the same command goes on from here")
        return 130


def become(setup: Setup, arguments: Sequence[str]) -> int:
    """Replace this process by the command; without one, say how to enter the environment."""
    if not arguments:
        say("the active environment is ready" if setup.active else f"enter it with: source {setup.prefix}/bin/activate")
        return 0
    environment = child_environment(setup)
    program = shutil.which(arguments[0], path=environment["PATH"])
    if program is None:
        raise SetupError(f"{arguments[0]}: no such command in {setup.prefix} or on the PATH")
    os.execve(program, list(arguments), environment)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
