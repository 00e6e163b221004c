"""Threads of this process that keep a core busy while nothing is to be done."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from time import sleep

from ktbench.host.sysfs import read_text

_TASKS = Path("/proc/self/task")
# Threads of OpenMP spin for a while after their work.
_WINDOW_S, _WINDOWS = 0.02, 25
# Of a core, what all of them take together, and what one of them takes at least: they may share a core.
_BUSY, _LEAST = 0.5, 0.05


def busy_threads(rest: Callable[[float], None] = sleep, tasks: Path = _TASKS) -> int:
    """How many threads but the calling one keep at least half a core busy together, in each of many windows of 20 ms.

    Returns as soon as they do not in one of them; 0 where the kernel does not count (proc_pid_schedstat).
    """
    busy: set[str] | None = None
    for _ in range(_WINDOWS):
        before = _run_ns(tasks)
        rest(_WINDOW_S)
        shares = {name: (ns - before.get(name, ns)) / (_WINDOW_S * 1e9) for name, ns in _run_ns(tasks).items()}
        if sum(shares.values()) < _BUSY:
            return 0
        now = {name for name, share in shares.items() if share > _LEAST}
        busy = now if busy is None else busy & now
    return max(1, len(busy or ()))


def _run_ns(tasks: Path) -> dict[str, int]:
    """Nanoseconds that each thread has run, by its id."""
    own = str(threading.get_native_id())
    schedstats = {task.name: read_text(task / "schedstat") for task in tasks.iterdir() if task.name != own}
    return {name: int(text.split()[0]) for name, text in schedstats.items() if text}
