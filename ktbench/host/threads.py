"""Threads of this process that keep a core busy without work."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from time import sleep

from ktbench.host.sysfs import read_text

_TASKS = Path("/proc/self/task")
# Threads of OpenMP spin for a while after their work.
_WINDOW_S, _WINDOWS = 0.02, 25
# Shares of a core: of all of them together, and at least of each one, since they may share a core.
_BUSY, _LEAST = 0.5, 0.05


def busy_threads(rest: Callable[[float], None] = sleep, tasks: Path = _TASKS) -> int:
    """How many threads, except the calling one, together keep at least half a core busy in each of many 20 ms windows.

    Returns after the first window in which they do not; 0 if the kernel does not count (proc_pid_schedstat).
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
