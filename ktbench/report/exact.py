"""Values of a simulated step: the same every time, so that they have no interval."""

from __future__ import annotations

from collections.abc import Sequence

from ktbench.results.stats.intervals import Interval, median_interval
from ktbench.spec.record import Record

# Of measured values no interval is certain to hold the median, so that this marks one without spread.
_CERTAIN = 1.0


def exact(value: float) -> Interval:
    """A value that is known without doubt."""
    return Interval(low=value, mid=value, high=value, coverage=_CERTAIN, n=1)


def is_exact(value: Interval) -> bool:
    """Whether a value has no interval."""
    return value.coverage == _CERTAIN


def summary(values: Sequence[float], records: Sequence[Record]) -> Interval:
    """The values of the rounds that `records` stand for: their median with its interval, or the one simulated value."""
    return exact(values[0]) if records[0].provenance == "simulated" else median_interval(values)
