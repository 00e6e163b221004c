"""Ends a program that reaches for what is denied, and says what that was. Runs in the child: imports little.

The walls are the kernel's. This hook sees only what goes through Python's own functions, and gives it a name.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence

_WORDS = {
    "socket": "tried to use the network",
    "subprocess": "tried to start a process",
    "pty": "tried to start a process",
    "os.fork": "tried to start a process",
    "os.forkpty": "tried to start a process",
    "os.posix_spawn": "tried to start a process",
    "os.spawn": "tried to start a process",
    "os.exec": "tried to start a process",
    "os.system": "tried to start a process",
    "os.kill": "tried to signal a process",
    "os.killpg": "tried to signal a process",
    "os.chmod": "tried to change files",
    "os.chown": "tried to change files",
    "os.link": "tried to change files",
    "os.mkdir": "tried to change files",
    "os.remove": "tried to change files",
    "os.rename": "tried to change files",
    "os.rmdir": "tried to change files",
    "os.symlink": "tried to change files",
    "os.truncate": "tried to change files",
    "os.utime": "tried to change files",
    "tempfile": "tried to change files",
    "shutil": "tried to change files",
}
_LISTING = {"os.listdir", "os.scandir"}
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def stop_attempts(readable: Sequence[str], stop: Callable[[str], None]) -> None:
    """Call `stop` with words at the first attempt to leave the walls.

    Reading below `readable` is no such attempt, nor is writing /dev/null.
    """
    whole_path = os.path.realpath
    within = tuple(whole_path(path) for path in readable)

    def is_readable(path: str) -> bool:
        real = whole_path(path)
        return any(real == root or real.startswith(f"{root}/") for root in within)

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            words = _of_open(path, flags if isinstance(flags, int) else 0, is_readable)
        elif event in _LISTING:
            words = _of_path("list", arguments[0], is_readable)
        else:
            words = _WORDS.get(event) or _WORDS.get(event.partition(".")[0], "")
        if words:
            stop(words)

    sys.addaudithook(watch)


def _of_open(path: object, flags: int, is_readable: Callable[[str], bool]) -> str:
    if path in {"/dev/null", b"/dev/null"}:
        return ""
    if flags & _WRITING:
        return "" if isinstance(path, int) else f"tried to write {_said(path)}"
    return _of_path("open", path, is_readable)


def _of_path(verb: str, path: object, is_readable: Callable[[str], bool]) -> str:
    if path is None or isinstance(path, int):
        return ""
    return "" if is_readable(_said(path)) else f"tried to {verb} {_said(path)}"


def _said(path: object) -> str:
    return os.fsdecode(path) if isinstance(path, bytes) else str(path)
