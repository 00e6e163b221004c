"""From values to places on an axis, and the round values that are named beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, log10

_WIDE = 8.0  # from this ratio of largest to least on a linear axis loses the small ones
_MARGIN = 0.06


@dataclass(frozen=True, kw_only=True, slots=True)
class Scale:
    """`low` and `high` lie at `start` and `end` of the axis, which is logarithmic or linear."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """The place of a value; one beyond the axis lies at its end."""
        held = min(max(value, self.low), self.high)
        share = log10(held / self.low) / log10(self.high / self.low) if self.log else self._linear(held)
        return self.start + share * (self.end - self.start)

    def _linear(self, value: float) -> float:
        return (value - self.low) / (self.high - self.low)

    def ticks(self, count: int = 5) -> list[float]:
        """Round values on the axis, about `count` of them."""
        return _decades(self.low, self.high) if self.log else _steps(self.low, self.high, count)


def linear_around(values: Sequence[float], start: float, end: float) -> Scale:
    """A linear axis that holds all values with some room."""
    low, high = min(values), max(values)
    room = _MARGIN * (high - low) or 1.0
    return Scale(low=low - room, high=high + room, start=start, end=end)


def scale_around(values: Sequence[float], start: float, end: float, *, zero: bool = False) -> Scale:
    """An axis that holds all values with some room, logarithmic where they differ much; else with `zero` from 0."""
    low, high = (min(values), max(values)) if values else (1.0, 1.0)
    if low > 0 and high >= _WIDE * low:
        room = (high / low) ** _MARGIN
        return Scale(low=low / room, high=high * room, start=start, end=end, log=True)
    room = _MARGIN * (high - low) or abs(high) or 1.0
    return Scale(low=0.0 if zero and low >= 0 else low - room, high=high + room, start=start, end=end)


def tick_name(value: float) -> str:
    """Without digits that say nothing: 0.5, 12, 4,096."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:g}"


def _steps(low: float, high: float, count: int) -> list[float]:
    rough = (high - low) / count
    ten = 10.0 ** floor(log10(rough))
    step = next(ten * part for part in (1, 2, 5, 10) if ten * part >= rough * 0.999)
    return [round(n * step, 12) for n in range(ceil(low / step - 1e-9), floor(high / step + 1e-9) + 1)]


def _decades(low: float, high: float) -> list[float]:
    """Powers of ten, and their doubles and fives where those are few, and where these are few steps of one size."""
    tens = [10.0**n for n in range(floor(log10(low)), ceil(log10(high)) + 1)]
    shown = [ten for ten in tens if low <= ten <= high]
    finer = [ten * part for ten in tens for part in (1, 2, 5) if low <= ten * part <= high]
    return next((ticks for ticks in (shown, finer) if len(ticks) > 2), _steps(low, high, 4))
