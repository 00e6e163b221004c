"""The timed loop: warm-up, clock readings, and what else ran meanwhile."""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable, Collection, Sequence
from itertools import pairwise
from statistics import median
from time import perf_counter

from ktbench.spec.engine import EngineSpec

Clock = Callable[[], float]
_MAX_WARM_UPS = 8
# Steps that take seconds are warm after one trial: the remaining first touches take little of their time.
_MAX_WARM_UP_S = 2.0
# A step that still touches fresh pages is not warm; a few faults are noise of the interpreter.
_FEW_FAULTS = 16
# Cores that an operator may use beyond its threads, and seconds for threads of OpenMP that spin after earlier work.
_SPARE_CORES, _SPARE_S = 0.5, 0.02
# A step that takes this much longer than others was paused without a signal, as in a frozen container.
_GAP, _GAP_S = 10.0, 0.5


def time_steps(
    step: Callable[[], None],
    steps: int,
    clock: Clock = perf_counter,
    keep: Callable[[], None] = lambda: None,
    kept: Collection[int] = (),
) -> tuple[float, ...]:
    """Seconds of each of `steps` steps. Each mark ends one sample and begins the next.

    After the steps `kept`, counted from 0, `keep` is called before the mark, so that their output must exist by then.
    """
    marks_s = [0.0] * (steps + 1)
    marks_s[0] = clock()
    for i in range(1, steps + 1):
        step()
        if i - 1 in kept:
            keep()
        marks_s[i] = clock()
    return tuple(end - begin for begin, end in pairwise(marks_s))


def warm_up(trial: Callable[[], None], faults: Callable[[], int] | None = None, clock: Clock = perf_counter) -> int:
    """Repeat an untimed trial until page faults stop, at most 8 times or 2 s. Returns the number of repetitions."""
    count = faults or page_faults
    began_s = clock()
    for done in range(1, _MAX_WARM_UPS + 1):
        before = count()
        trial()
        if count() - before <= _FEW_FAULTS or clock() - began_s > _MAX_WARM_UP_S:
            return done
    return _MAX_WARM_UPS


def page_faults() -> int:
    """Pages this process has faulted in so far."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_minflt + usage.ru_majflt


def excess_threads(engine: EngineSpec, threads: int, cpu_s: float, took_s: float) -> str:
    """Why timed steps ran on more threads than an engine has; empty if they did not.

    `threads` are PyTorch's before the steps, `cpu_s` is the processor time and `took_s` the time of the steps, both in
    seconds.
    """
    allowed, now = engine.threads, torch_threads()
    if now != threads or (allowed is not None and now > allowed):
        return f"the operator set PyTorch's threads to {now}"
    if allowed is not None and cpu_s > (allowed + _SPARE_CORES) * took_s + _SPARE_S:
        return f"{cpu_s / took_s:.1f} cores were busy, engine.threads={allowed} requested"
    return ""


def torch_threads() -> int:
    """PyTorch's number of threads; 0 if it is not loaded."""
    torch = sys.modules.get("torch")
    return 0 if torch is None else int(torch.get_num_threads())


def gap_note(samples_s: Sequence[float]) -> tuple[str, ...]:
    """A note of a pause between two readings of the clock; the sample is kept."""
    longest_s, usual_s = max(samples_s), median(samples_s)
    if longest_s < max(_GAP * usual_s, usual_s + _GAP_S):
        return ()
    return (f"one step took {longest_s:.3g} s, the median one {usual_s:.3g} s: the machine may have been paused",)
