"""The child: applies the restrictions, runs a program and reports. Imports little, since every program pays for it."""

from __future__ import annotations

import atexit
import builtins
import json
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from numbers import Number
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

from ktbench.eval.sandbox.restrictions import restrict_process

if TYPE_CHECKING:
    from ktbench.eval.sandbox.running import Job, PythonProgram

_ATTEMPTS = {
    "tried to use the network": "socket",
    "tried to start a process": "subprocess pty os.fork os.forkpty os.posix_spawn os.spawn os.exec os.system",
    "tried to signal a process": "os.kill os.killpg",
    "tried to change files": (
        "os.chmod os.chown os.link os.mkdir os.remove os.rename os.rmdir os.symlink os.truncate os.utime "
        "tempfile shutil"
    ),
}
_WORDS = {event: words for words, events in _ATTEMPTS.items() for event in events.split()}
_LISTING = {"os.listdir", "os.scandir"}
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def stop_attempts(readable: Sequence[str], stop: Callable[[str], None]) -> None:
    """Call `stop` with a description of the first forbidden attempt.

    Reading below `readable`, opening the standard input by name, and writing /dev/null are allowed.
    """
    whole_path = os.path.realpath
    within = tuple(whole_path(path) for path in readable)

    def is_readable(path: str) -> bool:
        real = whole_path(path)
        return any(real == root or real.startswith(f"{root}/") for root in within)

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            words = _forbidden_open(path, flags if isinstance(flags, int) else 0, is_readable)
        elif event in _LISTING:
            words = _forbidden_access("list", arguments[0], is_readable)
        else:
            words = _WORDS.get(event) or _WORDS.get(event.partition(".")[0], "")
        if words:
            stop(words)

    sys.addaudithook(watch)


_INPUTS = {"/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"}  # other names of the standard input


def _forbidden_open(path: object, flags: int, is_readable: Callable[[str], bool]) -> str:
    if isinstance(path, int) or _path_text(path) == "/dev/null":
        return ""
    if flags & _WRITING:
        return f"tried to write {_path_text(path)}"
    return "" if _path_text(path) in _INPUTS else _forbidden_access("open", path, is_readable)


def _forbidden_access(verb: str, path: object, is_readable: Callable[[str], bool]) -> str:
    if path is None or isinstance(path, int):
        return ""
    return "" if is_readable(_path_text(path)) else f"tried to {verb} {_path_text(path)}"


def _path_text(path: object) -> str:
    return os.fsdecode(path) if isinstance(path, bytes) else str(path)


_RESERVE_BYTES = 8 * 2**20  # so that a program that ran out of memory can still be reported

Line = Mapping[str, object]
Report = Callable[[Line], None]


def main(root: str) -> None:
    """Run the job in the file argv[1], and report to the file argv[2], one JSON object per line.

    The last line has the job's token as `end`, or the reason of a failure as `why`. `root` is removed from sys.path.
    """
    with os.fdopen(int(sys.argv[1]), encoding="utf-8") as file:
        job: Job = json.load(file)
    report = _reporter(int(sys.argv[2]))
    _tidy(root, job["libraries"])
    try:
        mechanisms = restrict_process(job["restrictions"])
    except OSError as error:
        _leave(report, {"refused": error.strerror})
    # Printing a traceback reads this file: that is denied, but not an attempt to escape.
    stop_attempts([*job["restrictions"]["readable"], ".", __file__], lambda words: _leave(report, {"why": words}))
    _pipe_for_asyncio()
    report({"mechanisms": mechanisms})
    _leave(report, _run(job["program"], job["token"], report))


def _reporter(fd: int) -> Report:
    """Keeps references to the functions it calls: a program may replace any function of any module."""
    dumps, write = json.dumps, os.write

    def report(line: Line) -> None:
        left = dumps(line).encode() + b"\n"
        while left:
            left = left[write(fd, left) :]

    return report


def _leave(report: Report, line: Line, leave: Callable[[int], NoReturn] = os._exit) -> NoReturn:
    """Write the last line; no code of the program runs after it."""
    with suppress(BaseException):
        report(line)
    leave(0)


def _tidy(root: str, libraries: Sequence[str]) -> None:
    """Make the interpreter look as if it had been started for the program alone."""
    sys.argv = ["program.py"]
    sys.dont_write_bytecode = True
    sys.path.remove(root)
    sys.path += libraries
    for name in [name for name in sys.modules if name.partition(".")[0] == "ktbench"]:
        del sys.modules[name]
    vars(builtins).update(exit=sys.exit, quit=sys.exit)  # like `site`


class _PipeEnd:
    """One end of a pipe, as far as asyncio takes it for a socket."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.recv, self.send = partial(os.read, fd), partial(os.write, fd)
        self.fileno, self.setblocking = (lambda: fd), partial(os.set_blocking, fd)
        self.close = partial(os.close, fd)


def _pipe_for_asyncio() -> None:
    """A pair of pipe ends instead of the socket pair with which asyncio wakes its own loop, since sockets are
    denied."""

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        if event == "import" and arguments[0] == "asyncio.selector_events":
            import socket

            socket.socketpair = lambda *_, **__: tuple(map(_PipeEnd, os.pipe()))

    sys.addaudithook(watch)


def _run(program: PythonProgram, token: str, report: Report) -> Line:
    """The last line of the report."""
    reserve = bytearray(_RESERVE_BYTES)
    try:
        try:
            _execute(program, report)
        except SystemExit:
            if not program["may_exit"]:
                return {"why": "ended before its tests did"}
        _finish()
    except MemoryError:
        del reserve
        return {"why": "memory"}
    except BaseException as error:
        return {"why": _describe(error)}
    return {"end": token}


def _execute(program: PythonProgram, report: Report) -> None:
    module = ModuleType(program["name"])
    sys.modules[program["name"]] = module
    for source in program["sources"]:
        exec(compile(source, "program.py", "exec", dont_inherit=True), module.__dict__)
        report({})
    if program["function"]:
        is_method = any("class Solution" in source for source in program["sources"])  # LiveBench looks for these words
        function = getattr(module.Solution() if is_method else module, program["function"])
        for arguments in program["arguments"]:
            value = function(*arguments)
            report({"value": _as_json(list(value) if isinstance(value, tuple) else value)})


def _as_json(value: object) -> object:
    """The JSON value that equals a value. Raises TypeError if there is none."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, list):
        return [_as_json(item) for item in value]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: _as_json(item) for key, item in value.items()}
    if isinstance(value, Number):
        return _as_number(value)
    if getattr(value, "size", 0) == 1 and hasattr(value, "item"):  # from numpy and the like, which need not be imported
        return _as_json(value.item())
    raise TypeError(f"the value holds a {type(value).__name__}, which is not JSON serializable")


def _as_number(value: Any) -> int | float:
    """The int or float equal to a number: numpy's, a fraction, a decimal, a complex number."""
    real = value.real if isinstance(value, complex) else value
    for kind in (int, float):
        with suppress(TypeError, ValueError, OverflowError):
            if isinstance(value, kind) or kind(real) == value:
                return kind(real)
    raise TypeError(f"the {type(value).__name__} {value} is not JSON serializable")


def _finish() -> None:
    """Do what an interpreter does at its end."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.__stdout__):
        with suppress(ValueError, AttributeError):  # closed, or replaced by something else
            stream.flush()  # type: ignore[union-attr]


def _describe(error: BaseException) -> str:
    name = type(error).__name__
    with suppress(BaseException):
        return f"{name}: {error}"[:300] if str(error) else name
    return name
