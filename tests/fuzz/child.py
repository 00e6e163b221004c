"""One input in a process of its own: limited, watched for what it writes and starts, its output in a file."""

from __future__ import annotations

import faulthandler
import os
import resource
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

OUTPUT, WRITES = "output.txt", "writes.txt"
RUNS = "runs"
MADE = "made"  # beside the folders of inputs: what targets prepare
UNCAUGHT = 70  # the exit code where an exception reached the top
CPU_S = 5
_MEMORY_BYTES = 8 << 30  # of addresses; PyTorch alone takes two
_FILE_BYTES = 64 << 20
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
# Events of Python's auditing that change files, and which of their arguments name them.
_CHANGES = {
    "os.mkdir": (0,), "os.rename": (0, 1), "os.remove": (0,), "os.rmdir": (0,), "os.link": (0, 1), "os.symlink": (1,),
    "os.truncate": (0,), "os.chmod": (0,), "os.chown": (0,), "os.utime": (0,),
}  # fmt: skip
_ALLOWED = ("/dev/null", "/proc/", "/dev/shm/__KMP", "/dev/tty")
_PROGRAMS = ("git",)


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """How a process ended: by its exit code, or by a signal. `output` is its standard error.

    `writes` are the files beside its run folder that it changed.
    """

    code: int
    by: str
    cpu_s: float
    wall_s: float
    output: str
    writes: tuple[str, ...]


class Reached(BaseException):
    """The request was accepted and would start a worker: nothing is measured here."""


class _Watch:
    """Notes what is written outside of the run folder, connected to, or unpickled, while `is_on`."""

    def __init__(self, home: Path) -> None:
        self.is_on, self.seen, self._home = False, list[str](), home

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.is_on:
            return
        if event == "open" and isinstance(arguments[0], (str, bytes)) and (arguments[2] or 0) & _WRITING:
            self._changed(arguments[0])
        elif event in _CHANGES:
            for place in _CHANGES[event]:
                self._changed(arguments[place])
        elif event in ("socket.connect", "pickle.find_class", "os.system", "os.exec"):
            self.seen.append(f"{event} {arguments[1:]}")
        elif event == "subprocess.Popen" and Path(os.fsdecode(arguments[0])).name not in _PROGRAMS:
            raise Reached

    def _changed(self, name: Any) -> None:
        if isinstance(name, int):
            return
        path = os.path.realpath(os.fsdecode(name))
        inside = any(path == str(self._home / one) or path.startswith(f"{self._home / one}/") for one in (RUNS, "tmp"))
        if not inside and not path.startswith(_ALLOWED):
            self.seen.append(path)


_watch: _Watch | None = None


@contextmanager
def watched() -> Iterator[None]:
    """What happens meanwhile is the subject's, not the harness's."""
    assert _watch is not None
    _watch.is_on = True
    try:
        yield
    finally:
        _watch.is_on = False


def ktbench(*words: str) -> int:
    """The exit code of a command in this process, 0 where it would start to measure."""
    from ktbench import cli

    with watched(), suppress(Reached):
        return cli.main(words)
    return 0


def made(target: str) -> Path:
    """What a target has prepared."""
    return Path.cwd().parent / MADE / target


def run_child(carry_out: Callable[[Any], int], data: Any, home: Path) -> None:
    """Carry out one input in `home` and end this process, with its exit code, whatever happens."""
    code = UNCAUGHT
    try:
        _enter(home)
        code = carry_out(data)
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(BaseException):
            _leave(home)
        os._exit(code)


def _enter(home: Path) -> None:
    global _watch  # noqa: PLW0603, Python keeps audit hooks for good
    sys.dont_write_bytecode = True  # of modules that this input is the first to load
    os.setsid()
    os.chdir(home)
    _redirect(home)
    for name in ("tmp", RUNS):
        (home / name).mkdir()
    os.environ |= {"TMPDIR": str(home / "tmp"), "KTBENCH_CACHE": str(home / "tmp")}
    _limit()
    _watch = _Watch(home)
    sys.addaudithook(_watch)


def _leave(home: Path) -> None:
    seen = _watch.seen if _watch is not None else []
    (home / WRITES).write_text("\n".join(seen), errors="replace")
    for stream in (sys.stdout, sys.stderr):
        stream.flush()


def _redirect(home: Path) -> None:
    output = os.open(home / OUTPUT, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream, to in ((0, nothing), (1, nothing), (2, output)):
        os.dup2(to, stream)
    faulthandler.enable()


def _limit() -> None:
    """Where the limits of this process are lower already, they stay."""
    for kind, soft, most in (
        (resource.RLIMIT_AS, _MEMORY_BYTES, _MEMORY_BYTES),
        (resource.RLIMIT_FSIZE, _FILE_BYTES, _FILE_BYTES),
        (resource.RLIMIT_CPU, CPU_S, CPU_S + 1),
        (resource.RLIMIT_CORE, 0, 0),
    ):
        held = resource.getrlimit(kind)[1]
        hard = most if held == resource.RLIM_INFINITY else min(most, held)
        resource.setrlimit(kind, (min(soft, hard), hard))
