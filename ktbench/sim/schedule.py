"""How long a phase takes: tasks dealt to the threads of a domain as the real kernels deal them, and overlap."""

from __future__ import annotations

from heapq import heapreplace

import numpy as np
from numpy.typing import NDArray

Seconds = NDArray[np.float64]


def dynamic_s(expert_s: Seconds, tasks: int, threads: int) -> float:
    """Makespan in seconds of a queue: each thread takes the next task as soon as it is free.

    `expert_s` [E] are seconds of one thread for all `tasks` of each expert, which are alike and queued in the order of
    experts (KTransformers, section 3.2; its artifact counts up one atomic number, a task at a time).
    """
    free = [0.0] * threads  # a heap of the times at which threads are free
    for task_s in (expert_s / tasks).tolist():
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


def makespan_s(expert_s: Seconds, tasks: int, threads: int, *, dynamic: bool) -> float:
    """`dynamic_s`, or `static_s` with +d off."""
    return (dynamic_s if dynamic else static_s)(expert_s, tasks, threads)


def soft_maximum(reading: float, computing: Seconds, overlap: float) -> Seconds:
    """The norm of both times: their sum at an overlap of 1, the larger of them from large ones on."""
    seconds: Seconds = (reading**overlap + computing**overlap) ** (1 / overlap)
    return seconds
