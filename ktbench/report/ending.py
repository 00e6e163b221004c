"""How a cell ended over all its rounds, and why."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from ktbench.core.outcome import Outcome
from ktbench.core.record import Record
from ktbench.stats.intervals import Interval, median_interval


def ending_of(records: Sequence[Record], goal: float) -> tuple[Outcome | None, str]:
    """Outcome and reason; None before the first turn.

    One round that failed decides, the latest of them where there are several. A cell that was timed in every round is
    NOISY until the interval of its step time is within ±`goal`.
    """
    if not records:
        return None, "no turn yet"
    failed = [record for record in records if not record.outcome.timed]
    if failed:
        return failed[-1].outcome, failed[-1].why
    interval = step_interval(records)
    if not interval.closed(goal):
        return Outcome.NOISY, _open_reason(interval, goal)
    noisy = [record for record in records if record.outcome is Outcome.NOISY]
    return (Outcome.NOISY, noisy[-1].why) if noisy else (Outcome.OK, "")


def step_interval(records: Sequence[Record]) -> Interval:
    """Seconds a step over rounds, each round standing for itself with the median of its samples."""
    return median_interval([median(record.samples_s) for record in records])


def _open_reason(interval: Interval, goal: float) -> str:
    if interval.sound:
        return f"the interval stayed at ±{interval.half_width:.1%}, the goal was ±{goal:.1%}"
    return f"{interval.n} round{'' if interval.n == 1 else 's'} of the 6 that an interval of 95% needs"
