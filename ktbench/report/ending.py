"""How a cell ended over all its rounds, and why."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from ktbench.results.intervals import Interval, median_interval, summary
from ktbench.spec.outcome import Outcome
from ktbench.spec.record import Record


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
    return summary([median(record.samples_s) for record in records], records)


def open_reason(values: Sequence[float | None], goal: float) -> str:
    """Why the interval of the values has not reached the goal; empty where it has, or where there are no rounds.

    None stands for a round that was measured, but with the cores elsewhere than those of the baseline.
    """
    found = [value for value in values if value is not None]
    interval = median_interval(found) if found else None
    if not values or (interval and interval.closed(goal)):
        return ""
    if interval and interval.sound:
        return f"the interval stayed at ±{interval.half_width:.1%}, the goal was ±{goal:.1%}"
    if len(found) < len(values):
        return f"{len(found)} of {_rounds(len(values))} compare cores in the same place, an interval of 95% needs 6"
    return f"{_rounds(len(found))} of the 6 that an interval of 95% needs"


def _rounds(count: int) -> str:
    return f"{count} round{'' if count == 1 else 's'}"
