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
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"
