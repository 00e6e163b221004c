"""Waiting for what other processes do."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path


def until(holds: Callable[[], bool]) -> None:
    """Return as soon as it holds; a minute later it never will."""
    for _ in range(3000):
        if holds():
            return
        time.sleep(0.02)
    raise AssertionError("waited for nothing")


def is_gone(pid: int) -> bool:
    """Whether a process has ended, also where nobody has asked for its exit code yet."""
    return not Path(f"/proc/{pid}").exists() or _state(pid) == "Z"


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped, as by SIGSTOP."""
    return _state(pid) == "T"


def _state(pid: int) -> str:
    """The letter of proc(5)."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
