"""Python programs as forks of a process that has loaded everything: they begin in milliseconds instead of seconds.

With the fixture `loaded_children`, commands of this interpreter begin like that; others are started as ever. Nothing is
computed in that process: threads of OpenMP do not survive forks. Tests of what a fresh interpreter loads go without.
"""

from __future__ import annotations

import ctypes
import fcntl
import importlib
import inspect
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

ROOT = Path(__file__).parents[1]
_PR_SET_CHILD_SUBREAPER = 36
_MOST_FILES, _MOST_BYTES = 32, 1 << 18
_REPLY, _FREE = 999, 1000  # above the numbers of files that anybody asks for
_Popen = subprocess.Popen
Request = dict[str, Any]
Fork = Callable[[Request, Sequence[int]], int]


class Loader:
    """The process that has loaded everything, and that forks at request. It ends with this process."""

    def __init__(self) -> None:
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            words = [sys.executable, "-m", "tests.loaded", str(theirs.fileno())]
            self._process = _Popen(words, cwd=ROOT, pass_fds=(theirs.fileno(),))
        self._owner = os.getpid()

    def close(self) -> None:
        """Let it end; programs that it has begun go on."""
        self._ours.close()
        self._process.wait()

    @contextmanager
    def stands_in(self) -> Iterator[None]:
        """Inside, commands of this interpreter are forks."""
        with patch.object(subprocess, "Popen", self.popen):
            yield

    def popen(self, command: Any, *args: Any, **how: Any) -> subprocess.Popen[Any]:
        """Stands for `subprocess.Popen`. Forks of this process, which nobody can be made a child of, start theirs."""
        python = not isinstance(command, str | bytes) and next(iter(command), "") == sys.executable
        ours = python and os.getpid() == self._owner
        return _Forked(self._fork, command, **how) if ours else _Popen(command, *args, **how)

    def _fork(self, request: Request, files: Sequence[int]) -> int:
        """The id of a new child of this process: its parent ends at once, and the kernel gives it to this one."""
        ours, theirs = socket.socketpair()
        _adopt(orphans=True)
        try:
            with ours:
                with theirs:
                    message = json.dumps(request | {"parent": os.getpid()}).encode()
                    socket.send_fds(self._ours, [message], [theirs.fileno(), *files])
                return int(ours.recv(32))
        finally:
            _adopt(orphans=False)


class _Forked(subprocess.Popen[Any]):
    """A child that is forked; everything but its start is as ever."""

    def __init__(self, fork: Fork, command: Sequence[str], **how: Any) -> None:
        self._fork, self._how = fork, how
        super().__init__(command, **how)

    def _execute_child(self, args: Sequence[str], *how: Any) -> None:
        """As that of `subprocess.Popen`."""
        sys.audit("subprocess.Popen", args[0], args, self._how.get("cwd"), self._how.get("env"))
        given = inspect.signature(_Popen._execute_child).bind(self, args, *how).arguments  # type: ignore[attr-defined]
        pipes = [given[name] for name in ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")]
        standard = [number if end < 0 else end for number, end in enumerate((pipes[0], pipes[3], pipes[5]))]
        passed = list(self._how.get("pass_fds", ()))
        request = {
            "words": [*map(str, args)],
            "numbers": [0, 1, 2, *passed],
            "folder": str(self._how.get("cwd") or Path.cwd()),
            "environ": dict(self._how.get("env") or os.environ),
            "leads": bool(self._how.get("start_new_session")),
        }
        try:
            self.pid = self._fork(request, [*standard, *passed])
            self._child_created = True
        finally:
            self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]


def _adopt(*, orphans: bool) -> None:
    """Whether this process becomes the parent of descendants whose parents end (prctl(2))."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(orphans))


def main() -> None:
    """Load everything, then fork until the other end closes."""
    from tests.faults.forking import load_everything

    load_everything()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    asked = socket.socket(fileno=int(sys.argv[1]))
    while True:
        message, files, _, _ = socket.recv_fds(asked, _MOST_BYTES, _MOST_FILES)
        if not message:
            os._exit(0)  # without the seconds that Python takes to clear up
        if os.fork() == 0:
            if os.fork() == 0:
                _adopted(json.loads(message), files)
            os._exit(0)
        for number in files:
            os.close(number)


def _adopted(request: Request, files: Sequence[int]) -> None:
    """The life of a fork whose parent is the process that asked for it."""
    while (parent := os.getppid()) != request["parent"]:
        if parent == 1:
            os._exit(1)
        time.sleep(0.0005)
    reply, *given = files
    _live(request, [*given, reply])


def _fork_here(request: Request, files: Sequence[int]) -> int:
    """The id of a fork of this process, which has everything loaded itself."""
    reading, writing = os.pipe()
    if os.fork() == 0:
        _live(request, [*files, writing])
    os.close(writing)
    with os.fdopen(reading) as reply:
        return int(reply.read())


def _popen_here(command: Any, *args: Any, **how: Any) -> subprocess.Popen[Any]:
    """Stands for `subprocess.Popen` in a command, which leaves what is computed to its children."""
    ours = list(command[:2]) == [sys.executable, "-m"] and command[2].startswith("ktbench.")
    return _Forked(_fork_here, command, **how) if ours else _Popen(command, *args, **how)


def _live(request: Request, files: Sequence[int]) -> None:
    """The life of a fork. It ends here, whatever happens."""
    code = 1
    try:
        _arrange(files, [*request["numbers"], _REPLY])
        if request["leads"]:
            os.setsid()
        os.chdir(request["folder"])
        os.write(_REPLY, str(os.getpid()).encode())
        os.close(_REPLY)
        os.environ.clear()
        os.environ.update(request["environ"])
        added = [one for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if one and one not in sys.path]
        sys.path[:0] = added
        importlib.invalidate_caches()
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.stdin, sys.stdout, sys.stderr = (os.fdopen(n, mode, closefd=False) for n, mode in enumerate("rww"))
        subprocess.Popen = _popen_here  # type: ignore[assignment,misc]
        code = _ran(request["words"][1:])
        sys.stdout.flush(), sys.stderr.flush()
    except BaseException:
        with suppress(OSError):
            traceback.print_exc()
            sys.stderr.flush()
    finally:
        os._exit(code)


def _arrange(files: Sequence[int], numbers: Sequence[int]) -> None:
    """Give files their numbers, and close all others."""
    given = [fcntl.fcntl(number, fcntl.F_DUPFD, _FREE) for number in files]
    for path in Path("/proc/self/fd").iterdir():
        if int(path.name) < _FREE:
            with suppress(OSError):  # that of the listing
                os.close(int(path.name))
    for number, wanted in zip(given, numbers, strict=True):
        os.dup2(number, wanted)
        os.close(number)


def _ran(words: Sequence[str]) -> int:
    """The exit code of `python WORDS`."""
    try:
        kind, *rest = words
        sys.argv = [*words] if kind not in ("-c", "-m") else [kind, *rest[1:]]
        if kind == "-c":
            exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
        elif kind == "-m" and hasattr(module := importlib.import_module(rest[0]), "main"):
            return int(module.main() or 0)
        elif kind == "-m":
            runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        else:
            sys.path.insert(0, str(Path(kind).parent))
            runpy.run_path(kind, run_name="__main__")
    except SystemExit as error:
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    return 0


if __name__ == "__main__":
    main()
