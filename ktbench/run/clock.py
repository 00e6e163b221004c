"""Timing and warm-up: nothing but the work between two readings of the clock."""

from __future__ import annotations

import resource
from collections.abc import Callable
from itertools import pairwise
from time import perf_counter

Clock = Callable[[], float]
_MOST_WARM_UPS = 8
# Steps of seconds are warm after one turn: what is left of first touches is a small share of them.
_MOST_WARM_UP_S = 2.0
# A step that still touches fresh pages is not warm; a handful of faults is the interpreter's own noise.
_FEW_FAULTS = 16


def time_steps(step: Callable[[], None], steps: int, clock: Clock = perf_counter) -> tuple[float, ...]:
    """Seconds of each of `steps` steps. Each mark ends one sample and begins the next."""
    marks_s = [0.0] * (steps + 1)
    marks_s[0] = clock()
    for i in range(1, steps + 1):
        step()
        marks_s[i] = clock()
    return tuple(end - begin for begin, end in pairwise(marks_s))


def warm_up(turn: Callable[[], None], faults: Callable[[], int] | None = None, clock: Clock = perf_counter) -> int:
    """Repeats untimed turns until page faults stop, at most a few times or seconds. Returns how many were done."""
    count = faults or page_faults
    began_s = clock()
    for done in range(1, _MOST_WARM_UPS + 1):
        before = count()
        turn()
        if count() - before <= _FEW_FAULTS or clock() - began_s > _MOST_WARM_UP_S:
            return done
    return _MOST_WARM_UPS


def page_faults() -> int:
    """Pages this process has faulted in so far."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_minflt + usage.ru_majflt
