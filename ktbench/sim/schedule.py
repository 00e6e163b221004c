"""How long a phase takes: tasks dealt to the threads of a domain as the real kernels deal them, and overlap."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from heapq import heapreplace

import numpy as np
from numpy.typing import NDArray

from ktbench.resources import cache_folder

Seconds = NDArray[np.float64]
Makespan = Callable[[Seconds, int, int], float]

# Tasks that plain Python deals in the time that numba takes to load, 0.9 s: from then on queues are compiled.
_COMPILED_FROM = 6_000_000


def dynamic_s(expert_s: Seconds, tasks: int, threads: int) -> float:
    """Makespan in seconds of a queue: each thread takes the next task as soon as it is free.

    `expert_s` [E] are seconds of one thread for all `tasks` of each expert, which are alike and queued in the order of
    experts (KTransformers, section 3.2; its artifact counts up one atomic number, a task at a time).
    """
    free = [0.0] * threads  # a heap of the times at which threads are free
    for expert in range(len(expert_s)):
        task_s = float(expert_s[expert]) / tasks
        for _ in range(tasks):
            heapreplace(free, free[0] + task_s)
    return max(free)


def static_s(expert_s: Seconds, tasks: int, threads: int) -> float:
    """Makespan in seconds where each thread has one contiguous share of equally many tasks, as with +d off."""
    seconds: list[float] = expert_s.tolist()
    total = len(seconds) * tasks
    longest, done = 0.0, 0
    for thread in range(threads):
        end, busy = total * (thread + 1) // threads, 0.0
        while done < end:
            expert = done // tasks
            mine = min(end, (expert + 1) * tasks) - done
            busy += mine * seconds[expert] / tasks
            done += mine
        longest = max(longest, busy)
    return longest


class _Queues:
    """`dynamic_s`: in plain Python for as long as loading numba would take longer, as in most commands."""

    def __init__(self) -> None:
        self._dealt = 0

    def __call__(self, expert_s: Seconds, tasks: int, threads: int) -> float:
        self._dealt += len(expert_s) * tasks
        makespan = compiled(dynamic_s) if self._dealt > _COMPILED_FROM else dynamic_s
        return float(makespan(expert_s, tasks, threads))


_queues = _Queues()


@cache
def compiled(makespan: Makespan) -> Makespan:
    """The same, compiled by numba, which keeps what it compiled in our cache folder where that can be written."""
    from numba import config, njit

    folder = cache_folder() / "numba"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        is_writable = os.access(folder, os.W_OK)
    except OSError:
        is_writable = False
    config.CACHE_DIR = str(folder) if is_writable else ""  # type: ignore[attr-defined]
    kept: Makespan = njit(cache=is_writable)(makespan)
    try:
        kept(np.zeros(1), 1, 1)  # compiles and writes now: a full disk or a quota is seen here alone
    except OSError:
        unkept: Makespan = njit(cache=False)(makespan)
        return unkept
    return kept


def makespan_s(expert_s: Seconds, tasks: int, threads: int, *, dynamic: bool) -> float:
    """`dynamic_s`, or `static_s` with +d off."""
    return (_queues if dynamic else static_s)(expert_s, tasks, threads)


def soft_maximum(reading: float, computing: Seconds, overlap: float) -> Seconds:
    """The norm of both times: their sum at an overlap of 1, the larger of them from large ones on."""
    seconds: Seconds = (reading**overlap + computing**overlap) ** (1 / overlap)
    return seconds
