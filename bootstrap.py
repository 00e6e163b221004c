"""Sets up an environment for ktbench and runs a command in it: `python3 bootstrap.py COMMAND [ARGS…]`.

Standard library only. Installs what the command needs into the active virtual or conda environment, else into `.venv`
next to this file: kernels for this machine if the command uses them, packages of the tests only for tests.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
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

import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed, wait
from dataclasses import asdict, dataclass
from typing import TextIO

ROOT = Path(__file__).resolve().parent
STAMP = "ktbench-bootstrap.stamp"
# Marks every program that a set-up starts, with its checkout.
TAG = "KTBENCH_SETUP"
# Without a GPU the version is fixed: only builds whose name ends in +cpu are known to lack CUDA.
CPU_TORCH = "2.13.0"
USAGE = """usage: python3 bootstrap.py [--extras=NAME,NAME] [--isas=all] [COMMAND [ARGS...]]
  --extras  packages beyond those the command needs, such as train, serve or accuracy (pyproject.toml lists them)
  --isas    instruction sets to compile kernels for: native, this CPU's (the default), or all, to run elsewhere"""
_TAIL_LINES = 25

Run = Callable[[Sequence[str]], "subprocess.CompletedProcess[str]"]


class SetupError(Exception):
    """Why the environment cannot be set up: one line, and the end of a program's output if there is any."""

    def __init__(self, line: str, output: str = "") -> None:
        super().__init__("\n".join([*output.splitlines()[-_TAIL_LINES:], f"bootstrap: {line}"]))


@dataclass(frozen=True)
class Host:
    """The facts that determine the set-up: the current interpreter, the compiler, the GPU."""

    prefix: Path
    base_prefix: Path
    executable: str
    base_executable: str
    compiler: str
    has_gpu: bool
    isa_flags: str = ""


def this_host() -> Host:
    """Facts about this machine and interpreter."""
    compilers = (os.environ.get("CXX"), "c++", "g++", "clang++")
    return Host(
        prefix=Path(sys.prefix),
        base_prefix=Path(sys.base_prefix),
        executable=sys.executable,
        base_executable=getattr(sys, "_base_executable", sys.executable),
        compiler=next((name for name in compilers if name and shutil.which(name.split()[0])), ""),
        has_gpu=Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") is not None,
        isa_flags=_isa_flags(),
    )


def _isa_flags() -> str:
    """The CPU's flags that select instruction sets; none if the system does not list them."""
    with contextlib.suppress(OSError):
        flags = re.search(r"^flags\s*:(.*)", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
        return " ".join(flag for flag in (flags[1].split() if flags else ()) if re.match("avx|amx|fma|f16c", flag))
    return ""


@dataclass(frozen=True)
class Needs:
    """What a command needs: the engine (PyTorch and compiled kernels), and packages of extras."""

    engine: bool = True
    extras: tuple[str, ...] = ()
    isas: str = "native"


_DEVELOPMENT = ("pytest", "nox", "mypy", "ruff")
_VERB_EXTRAS = {"eval": ("accuracy",), "serve": ("serve",), "chat": ("serve",)}
# Verbs that measure nothing; a simulated sweep or run, `machine=NAME`, is like them.
_WITHOUT_ENGINE = ("advise", "plan", "list", "report", "compare", "validate", "completion", "help", "--help", "-h")
_SIMULATED = ("run", "sweep")


def needs_of(command: Sequence[str]) -> Needs:
    """What a command needs: everything that ktbench needs, unless the command is known here."""
    words = [Path(word).name if i == 0 else word for i, word in enumerate(command)]
    if words and words[0].startswith("python"):
        words = words[2:] if words[1:2] == ["-m"] else []
    if words and words[0] in _DEVELOPMENT:
        return Needs(extras=("dev",), isas="native;amx_emulated")  # tests also run AMX kernels without AMX
    if len(words) < 2 or words[0] != "ktbench":
        return Needs()
    described = any(word.startswith("machine=") and word != "machine=null" for word in words[2:])
    simulated = words[1] in _SIMULATED and described
    return Needs(words[1] not in _WITHOUT_ENGINE and not simulated, _VERB_EXTRAS.get(words[1], ()))


def run_quietly(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a program and capture stdout and stderr separately."""
    return subprocess.run(list(command), capture_output=True, text=True, check=False)


def say(line: str) -> None:
    """Progress, on stderr."""
    print(f"bootstrap: {line}", file=sys.stderr, flush=True)


# Seconds between two progress lines: on a terminal, where one replaces the other, and elsewhere.
_EVERY_S = {True: 1.0, False: 30.0}


@contextlib.contextmanager
def progress(describe: Callable[[], str]) -> Iterator[None]:
    """Inside, print now and then the text of `describe` with the elapsed time."""
    replaces, start_s, ended = sys.stderr.isatty(), time.monotonic(), threading.Event()

    def show() -> None:
        while not ended.wait(_EVERY_S[replaces]):
            minutes, seconds = divmod(round(time.monotonic() - start_s), 60)
            line = f"bootstrap: {minutes}:{seconds:02} {describe()}"
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
    """How many kernel files a build below `folder` has compiled since `start` (seconds, in file time)."""

    folder: Path
    start: float

    def __call__(self) -> str:
        """`, 12 of at most 87 files compiled`: others may be up to date; empty before the first."""
        builds = [*self.folder.glob("*/build.ninja")]
        objects = [path for build in builds for path in build.parent.rglob("*.o")]
        done = sum(path.stat().st_mtime >= self.start for path in objects)
        if not done:
            return ""
        total = sum(line.startswith("build ") and ".o: CXX_COMPILER" in line for line in _lines_of(builds))
        return f", {done} of at most {max(total, done)} files compiled"


def _lines_of(paths: Sequence[Path]) -> Iterator[str]:
    for path in paths:
        yield from path.read_text(errors="replace").splitlines()


@dataclass(frozen=True)
class Project:
    """The package requirements in pyproject.toml."""

    name: str
    dependencies: Sequence[str]
    extras: Mapping[str, Sequence[str]]

    @classmethod
    def read(cls, root: Path) -> Project:
        """The project of a checkout."""
        project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
        return cls(project["name"], project["dependencies"], project.get("optional-dependencies", {}))

    @property
    def torch(self) -> str:
        """The requirement of PyTorch."""
        return next((line for line in self.dependencies if re.match(r"torch\b", line)), "torch")

    def of_extra(self, extra: str) -> Iterator[str]:
        """An extra's requirements, with references to the project's own extras expanded."""
        for line in self.extras[extra]:
            own = re.fullmatch(rf"{re.escape(self.name)}\[(.+)\]", line)
            if own is None:
                yield line
            else:
                for inner in own[1].split(","):
                    yield from self.of_extra(inner.strip())


@dataclass(frozen=True)
class State:
    """The state of an environment according to its stamp: digests of its inputs, and its extras."""

    packages: str = ""
    kernels: str = ""
    isas: str = "native"
    extras: tuple[str, ...] = ()

    @property
    def has_torch(self) -> bool:
        """Whether PyTorch is installed: the engine and the packages of extras need it."""
        return bool(self.kernels or self.extras)

    @classmethod
    def read(cls, stamp: Path) -> State:
        """Empty without a stamp, or with one from another version of this program."""
        try:
            fields = json.loads(stamp.read_text())
            return cls(**{**fields, "extras": tuple(fields["extras"])})
        except (OSError, ValueError, TypeError, KeyError):
            return cls()


# Approximate disk space of installed parts, in GB.
_TORCH_GB = {True: 6.0, False: 0.75}
_PACKAGES_GB, _EXTRAS_GB, _KERNELS_GB = 0.6, 0.6, 0.1


@dataclass(frozen=True)
class Setup:
    """Brings one environment up to date. `run` starts programs; `root` is the checkout to install."""

    host: Host
    run: Run = run_quietly
    root: Path = ROOT

    @property
    def active(self) -> bool:
        """Whether we run inside a user's environment: a virtual one, or a conda one other than base."""
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
        """The file with the state of the last successful set-up."""
        return self.prefix / STAMP

    def bring_up_to_date(self, needs: Needs) -> None:
        """Create and install what is missing; quick when nothing changed. Raises SetupError."""
        held, wanted = self._held(), self._wanted(needs)
        if held == wanted:
            return
        if wanted.kernels and self._differs_in_code(held, wanted):
            self._require_compiler()
        self._announce(held, wanted)
        start_s = time.monotonic()
        with self._alone():
            if not self.active:
                self._create()
            self._ensure_pip()
            wanted = self._wanted(needs)  # of the existing environment
            self._install(self._held(), wanted)
            _write(self.stamp, json.dumps(asdict(wanted)))
        say(f"ready in {time.monotonic() - start_s:.0f} s: {self.prefix}")

    def _held(self) -> State:
        """The state of the environment; empty without one."""
        return State.read(self.stamp) if Path(self.python).exists() else State()

    def _wanted(self, needs: Needs) -> State:
        """The state of the environment needed by a command. Parts that are up to date are kept."""
        held, packages = self._held(), self._packages_digest()
        kernels = self._kernels_digest() if needs.engine else held.kernels if packages == held.packages else ""
        isas = held.isas if needs.isas == "native" or held.isas == "all" else needs.isas
        extras = held.extras + tuple(extra for extra in needs.extras if extra not in held.extras)
        return State(packages, kernels, isas, ("dev",) if "dev" in extras else extras)

    @staticmethod
    def _differs_in_packages(held: State, wanted: State) -> bool:
        return (held.packages, held.extras, held.has_torch) != (wanted.packages, wanted.extras, wanted.has_torch)

    @staticmethod
    def _differs_in_code(held: State, wanted: State) -> bool:
        """Whether ktbench itself must be reinstalled."""
        return (held.packages, held.kernels, held.isas) != (wanted.packages, wanted.kernels, wanted.isas)

    def _packages_digest(self) -> str:
        """Digest of what determines the packages: the requirements, the interpreter, and the checkout's location."""
        cfg = self.prefix / "pyvenv.cfg"
        state = hashlib.sha256(str(self.root).encode())
        state.update(cfg.read_bytes() if cfg.is_file() else sys.version.encode())
        state.update((self.root / "pyproject.toml").read_bytes())
        return state.hexdigest()

    def _kernels_digest(self) -> str:
        """Digest of the kernels' sources and of the CPU for which they are compiled."""
        state = hashlib.sha256(self.host.isa_flags.encode())
        for path in sorted(path for path in (self.root / "kernels").rglob("*") if path.is_file()):
            state.update(f"{path.relative_to(self.root)}\0{path.stat().st_size}\0".encode())
            state.update(path.read_bytes())
        return state.hexdigest()

    def _require_compiler(self) -> None:
        install = "install one first (Debian, Ubuntu: apt install g++)"
        if not self.host.compiler:
            raise SetupError(f"no C++ compiler: {install}")
        answer = self.run([*self.host.compiler.split(), "--version"]).stdout
        first = answer.partition("\n")[0]
        oldest = 14 if "clang" in first else 11
        major = [int(number) for number in re.findall(r"\b(\d+)\.\d+", first)][-1:]
        if major and major[0] < oldest:
            kind = "clang++" if "clang" in first else "g++"
            raise SetupError(f"{self.host.compiler} is {first}: needs {kind} {oldest} or newer; name another with CXX=")

    def _announce(self, held: State, wanted: State) -> None:
        """Print what will be installed and its size. Raises SetupError if the disk has no room for it."""
        parts: list[tuple[str, float]] = []
        if wanted.has_torch and not (Path(self.python).exists() and self._installed_torch()):
            gpu = self.host.has_gpu
            parts.append((f"PyTorch {'with CUDA' if gpu else 'for the CPU'}", _TORCH_GB[gpu]))
        if held.packages != wanted.packages:
            others = len(Project.read(self.root).dependencies) - 1
            parts.append((f"{others} packages and what they need", _PACKAGES_GB))
        if held.extras != wanted.extras:
            parts.append((f"the packages of [{','.join(wanted.extras)}]", _EXTRAS_GB))
        if wanted.kernels and self._differs_in_code(held, wanted):
            parts.append(("kernels compiled for this CPU", _KERNELS_GB))
        size_gb = sum(gb for _, gb in parts)
        say(f"setting up {self.prefix}: {', '.join(part for part, _ in parts) or 'ktbench'}")
        say(f"about {size_gb:.1f} GB of disk; one to four minutes on two cores, more on a slow network")
        folder = next(path for path in (self.prefix, *self.prefix.parents) if path.exists())
        free_gb = shutil.disk_usage(folder).free / 1e9
        if free_gb < size_gb:
            raise SetupError(
                f"{folder} has {free_gb:.1f} GB of disk left, the set-up takes {size_gb:.1f}: make room first"
            )

    @property
    def journal(self) -> Path:
        """Locked while a set-up is running, empty after it has ended."""
        return self.root / "build" / "ktbench-bootstrap.lock"

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Inside, no other set-up of this checkout is running, and the remains of a killed one are repaired."""
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
        """End the programs of the killed set-up, and remove what they had not installed completely.

        Incomplete packages are reinstalled, except those that were incomplete before that set-up began.
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
        """Packages without a file that installers write last."""
        packages = self.prefix.glob("lib/python3*/site-packages/*.dist-info")
        return [each for each in packages if not all((each / name).is_file() for name in ("INSTALLER", "RECORD"))]

    def _create(self) -> None:
        is_whole = (self.prefix / "bin" / "activate").is_file()  # among the last files that venv writes
        if is_whole and Path(self.python).exists() and self.run([self.python, "-c", ""]).returncode == 0:
            return
        say(f"creating {self.prefix}")
        # Without pip, because Debian's Python has venv but no ensurepip unless python3-venv is installed.
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

    def _install(self, held: State, wanted: State) -> None:
        """Install what differs, compiling during the downloads."""
        stages: dict[str, Callable[[], None]] = {}
        if self._differs_in_code(held, wanted):
            stages["kernels" if wanted.kernels else "ktbench"] = lambda: self._install_project(wanted)
        if self._differs_in_packages(held, wanted):
            stages["packages"] = lambda: self._install_packages(wanted)
        self._side_by_side(stages)

    def _side_by_side(self, stages: Mapping[str, Callable[[], None]]) -> None:
        """Run all stages at the same time; if one fails, end the others and raise its error."""
        running = dict.fromkeys(stages)
        compiled = Compiled(self.root / "build", time.time())

        def timed(name: str) -> None:
            start_s = time.monotonic()
            stages[name]()
            del running[name]
            say(f"{name} done in {time.monotonic() - start_s:.0f} s")

        def describe() -> str:
            return ", ".join(f"{name}{compiled() if name == 'kernels' else ''}" for name in [*running])

        with ThreadPoolExecutor(max_workers=max(1, len(stages))) as pool, progress(describe):
            futures = [pool.submit(timed, name) for name in stages]
            try:
                for future in as_completed(futures):
                    future.result()
            except BaseException:
                while not all(future.done() for future in futures):  # a stage may be about to start its next program
                    end_programs_of(self.root)
                    wait(futures, timeout=0.1)
                raise

    def _install_packages(self, wanted: State) -> None:
        """PyTorch, then all others with the installed torch: another one might include CUDA."""
        project = Project.read(self.root)
        if not wanted.has_torch:
            return self._pip("packages", *(line for line in project.dependencies if line != project.torch))
        self._ensure_torch()
        kept = self.prefix / "ktbench-constraints.txt"
        _write(kept, f"torch=={self._installed_torch()}\n")
        requirements = [*project.dependencies, *(line for extra in wanted.extras for line in project.of_extra(extra))]
        self._pip("packages", "--constraint", str(kept), *requirements)

    def _ensure_torch(self) -> None:
        if self._installed_torch():
            return
        if self.host.has_gpu:  # pip would take the newest build, which the driver may not support
            self._torch_by_uv("auto", Project.read(self.root).torch)
        elif f"{CPU_TORCH}+cpu" in self._offered_torch():
            self._pip("PyTorch", f"torch=={CPU_TORCH}+cpu")
        else:
            self._torch_by_uv("cpu", f"torch=={CPU_TORCH}")

    def _torch_by_uv(self, backend: str, requirement: str) -> None:
        """Let uv choose among PyTorch's builds: one that the driver supports, or one without CUDA."""
        self._pip("uv", "uv")
        uv = [self.python, "-m", "uv", "pip", "install", "--python", self.python]
        self._do("PyTorch", [*uv, f"--torch-backend={backend}", requirement])

    def _installed_torch(self) -> str:
        """Version of the environment's torch, empty without one."""
        code = "import importlib.metadata as m; print(m.version('torch'))"
        answer = self.run([self.python, "-c", code])
        return answer.stdout.strip() if answer.returncode == 0 else ""

    def _offered_torch(self) -> list[str]:
        """Versions that pip's configured sources offer here.

        Not with `pip install --dry-run`: that downloads the whole wheel, which includes CUDA unless one ends in +cpu.
        If pip cannot answer, uv is used, never CUDA.
        """
        answer = self.run([self.python, "-m", "pip", "index", "versions", "torch"])
        return re.findall(r"\d[\w.+]*", answer.stdout) if answer.returncode == 0 else []

    def _install_project(self, wanted: State) -> None:
        """Install the checkout in place, with compiled kernels or only Python."""
        cmake = f"-Ccmake.define.KTBENCH_ISAS={wanted.isas}" if wanted.kernels else "-Cwheel.cmake=false"
        what = "kernels" if wanted.kernels else "ktbench"
        # The package index has another project of this name; it, or an older checkout, would hide this one.
        self.run([self.python, "-m", "pip", "uninstall", "--quiet", "--yes", "ktbench"])
        self._pip(what, "--no-deps", cmake, "--editable", str(self.root))

    def _pip(self, what: str, *arguments: str) -> None:
        self._do(what, [self.python, "-m", "pip", "install", "--quiet", *arguments])

    def _do(self, what: str, command: Sequence[str]) -> None:
        done = self.run(command)
        if done.returncode:
            output = done.stdout + done.stderr
            raise SetupError(_failure(what, command, output), output)


# Patterns in a failed program's output, and remedies.
_REMEDIES = (
    ("No space left on device|Disk quota exceeded", "the disk is full: make room, then repeat the command"),
    ("Permission denied|Read-only file system", "a folder is not writable: make it so, then repeat the command"),
    (
        "ConnectionError|Max retries|name resolution|Network is unreachable|ReadTimeout|dns error",
        "no package index was reached: check the network, or pip's settings, then repeat the command",
    ),
)


def _failure(what: str, command: Sequence[str], output: str) -> str:
    """One line that says what to do, if the output tells; else which program failed."""
    for pattern, remedy in _REMEDIES:
        if re.search(pattern, output, re.IGNORECASE):
            return f"installing {what} failed: {remedy}"
    return f"installing {what} failed: {' '.join(command)}"


def _write(path: Path, text: str) -> None:
    """Write a file completely or not at all. Raises OSError with the name of the file."""
    part = path.with_name(f".{path.name}.part")
    try:
        part.write_text(text)
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from None


def end_programs_of(root: Path) -> None:
    """End programs that set-ups of a checkout have left running: an installer outlives its parent."""
    tag = f"{TAG}={root}".encode()
    for _ in range(100):
        left = [process for process in Path("/proc").glob("[0-9]*") if tag in _environment(process)]
        for process in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(process.name), signal.SIGKILL)
        if not left:
            return
        time.sleep(0.05)
    raise SetupError(f"processes of a set-up that was killed do not end: {', '.join(process.name for process in left)}")


def _environment(process: Path) -> list[bytes]:
    """The environment variables of a process; none if it is another user's or has ended."""
    with contextlib.suppress(OSError):
        return (process / "environ").read_bytes().split(b"\0")
    return []


def child_environment(setup: Setup) -> dict[str, str]:
    """Our own variables with the environment's programs first on the PATH."""
    path = f"{Path(setup.python).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    activated = {} if setup.active else {"VIRTUAL_ENV": str(setup.prefix)}
    own = {name: value for name, value in os.environ.items() if name != TAG}
    return {**own, **activated, "PATH": path}


def options_of(arguments: Sequence[str]) -> tuple[dict[str, str], Sequence[str]]:
    """The options before the command, by name, and the command. Raises SetupError for unknown ones."""
    options: dict[str, str] = {}
    for i, word in enumerate(arguments):
        if not word.startswith("-"):
            return options, arguments[i:]
        name, _, value = word.partition("=")
        if name not in ("--extras", "--isas") or not value:
            raise SetupError(f"{word}: unknown option\n{USAGE}")
        options[name] = value
    return options, ()


def asked_for(options: Mapping[str, str], command: Sequence[str], project: Project) -> Needs:
    """What the command needs and the options add. Raises SetupError for an unknown extra or instruction set."""
    needs = needs_of(command)
    extras = [name for name in options.get("--extras", "").split(",") if name]
    unknown = [name for name in extras if name not in project.extras]
    if unknown:
        raise SetupError(f"--extras={unknown[0]}: unknown; allowed are {', '.join(project.extras)}")
    isas = options.get("--isas", needs.isas)
    if isas not in (needs.isas, "native", "all"):
        raise SetupError(f"--isas={isas}: unknown; allowed are native, all")
    return Needs(needs.engine or isas == "all", tuple(dict.fromkeys((*needs.extras, *extras))), isas)


def main(arguments: Sequence[str]) -> int:
    """Set up, then become COMMAND; returns only without a command, or after an error."""
    if arguments and arguments[0] in ("-h", "--help"):
        print(USAGE)
        return 0
    setup = Setup(this_host())
    try:
        options, command = options_of(arguments)
        setup.bring_up_to_date(asked_for(options, command, Project.read(setup.root)))
        return become(setup, command)
    except SetupError as error:
        print(error, file=sys.stderr)
        return 2
    except OSError as error:
        where = error.filename or setup.journal  # errors of writes to an open file name none
        say(f"{where}: {error.strerror}; mend that, then repeat the command")
        return 2
    except KeyboardInterrupt:
        say("interrupted: the same command goes on from here")
        return 130


def become(setup: Setup, arguments: Sequence[str]) -> int:
    """Replace this process with the command; without one, say how to enter the environment."""
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
