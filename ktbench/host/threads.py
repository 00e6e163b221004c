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
_BUSY = 0.5


def busy_threads(rest: Callable[[float], None] = sleep, tasks: Path = _TASKS) -> int:
    """How many threads but the calling one run for more than half of the time, in each of many windows of 20 ms.

    Returns as soon as none does in one of them; 0 where the kernel does not count (proc_pid_schedstat).
    """
    busy: set[str] | None = None
    for _ in range(_WINDOWS):
        before = _run_ns(tasks)
        rest(_WINDOW_S)
        after = _run_ns(tasks)
        now = {name for name, ns in after.items() if ns - before.get(name, ns) > _BUSY * _WINDOW_S * 1e9}
        busy = now if busy is None else busy & now
        if not busy:
            return 0
    return len(busy or ())


def _run_ns(tasks: Path) -> dict[str, int]:
    """Nanoseconds that each thread has run, by its id."""
    own = str(threading.get_native_id())
    found = {task.name: read_text(task / "schedstat") for task in tasks.iterdir() if task.name != own}
    return {name: int(text.split()[0]) for name, text in found.items() if text}
