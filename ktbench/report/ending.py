"""How a cell ended over all its rounds, and why."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from ktbench.core.outcome import Outcome
from ktbench.core.record import Record
from ktbench.stats.intervals import Interval, median_interval


def ending_of(records: Sequence[Record]) -> tuple[Outcome | None, str]:
    """Outcome and reason over all rounds, precision apart; None before the first turn.

    One round that failed decides, the latest of them where there are several.
    """
    if not records:
        return None, "no turn yet"
    untimed = [record for record in records if not record.outcome.timed]
    noisy = [record for record in records if record.outcome is Outcome.NOISY]
    last = next(reversed([*noisy, *untimed]), None)
    return (last.outcome, last.why) if last else (Outcome.OK, "")


def step_interval(records: Sequence[Record]) -> Interval:
    """Seconds a step over rounds, each round standing for itself with the median of its samples."""
    return median_interval([median(record.samples_s) for record in records])


def open_reason(interval: Interval, goal: float) -> str:
    """Why an interval has not reached the goal; empty where it has."""
    if interval.closed(goal):
        return ""
    if interval.sound:
        return f"the interval stayed at ±{interval.half_width:.1%}, the goal was ±{goal:.1%}"
    return f"{interval.n} round{'' if interval.n == 1 else 's'} of the 6 that an interval of 95% needs"
