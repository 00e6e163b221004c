"""The median with a distribution-free interval between two order statistics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import comb, exp, hypot, isfinite, log
from statistics import median

from ktbench.spec.record import Record
from ktbench.spec.run_spec import MeasureSpec

CONFIDENCE = 0.95
# Of measured values no interval is certain to hold the median, so that this marks one without spread.
_CERTAIN = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """A median `mid` of `n` values between two of them; `coverage` is the exact chance to hold the true median."""

    low: float
    mid: float
    high: float
    coverage: float
    n: int

    @property
    def half_width(self) -> float:
        """Half the interval relative to its median: 0.05 reads as ±5 %."""
        return (self.high - self.low) / 2 / abs(self.mid) if self.mid else float("inf")

    @property
    def sound(self) -> bool:
        """Whether there were values enough (six) for an interval of 95 %."""
        return self.coverage >= CONFIDENCE

    @property
    def has_ends(self) -> bool:
        """Whether `low` and `high` are an interval to show: of an exact value, and of too few, they are none."""
        return self.sound and self.coverage < _CERTAIN

    def closed(self, goal: float) -> bool:
        """Whether a sound interval is within the goal."""
        return self.sound and self.half_width <= goal

    def per(self, amount: float) -> Interval:
        """The interval of `amount` / value, as a rate is made from a time. Values must be above 0."""
        return replace(self, low=amount / self.high, mid=amount / self.mid, high=amount / self.low)

    def with_spread(self, equal: Interval | None) -> Interval:
        """The interval of a ratio with what the ratio of two equal things, which is 1 in truth, differed by beside it.

        How far an end lies from the middle, and how far `equal` reaches beyond 1 on the other side, are errors that do
        not depend on each other, and add up as their squares do, on a logarithmic scale. None widens nothing, and
        nothing widens what is exact.
        """
        if equal is None or is_exact(self):
            return self
        below = hypot(log(self.mid / self.low), max(log(equal.high), 0.0))
        above = hypot(log(self.high / self.mid), max(-log(equal.low), 0.0))
        return replace(self, low=self.mid * exp(-below), high=self.mid * exp(above))

    def exponential(self) -> Interval:
        """The factor that logarithms stand for."""
        return replace(self, low=exp(self.low), mid=exp(self.mid), high=exp(self.high))


def median_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """Median of independent values, whatever their distribution, with the narrowest interval of at least `confidence`.

    Raises ValueError where there is no value or one is not finite. With too few values for `confidence` the interval
    spans them all and has its true coverage. Source: David and Nagaraja, Order Statistics (2003), section 7.1.
    """
    ordered = sorted(values)
    if not ordered:
        raise ValueError("no values: an interval needs at least one")
    if not all(isfinite(value) for value in ordered):
        raise ValueError(f"values {ordered}: every one must be finite")
    low, high = order_ranks(len(ordered), confidence)
    return Interval(
        low=ordered[low - 1],
        mid=median(ordered),
        high=ordered[high - 1],
        coverage=coverage(len(ordered), low),
        n=len(ordered),
    )


def interval_of(values: Iterable[float | None]) -> Interval | None:
    """The same of those values that are not None; None where there is no such value."""
    found = [value for value in values if value is not None]
    return median_interval(found) if found else None


@cache
def order_ranks(n: int, confidence: float = CONFIDENCE) -> tuple[int, int]:
    """Ranks, counted from 1, of the innermost two of n values that hold the median with `confidence`; else (1, n)."""
    innermost = max((k for k in range(1, (n + 1) // 2 + 1) if coverage(n, k) >= confidence), default=1)
    return innermost, n + 1 - innermost


def coverage(n: int, low: int) -> float:
    """Chance that the true median lies between values number `low` and n+1-`low`: 1 - 2 P(Binomial(n, 1/2) < low)."""
    outside: int = 2 * sum(comb(n, k) for k in range(low))
    return max(0.0, 1 - outside / float(2**n))


def exact(value: float) -> Interval:
    """A value that is known without doubt."""
    return Interval(low=value, mid=value, high=value, coverage=_CERTAIN, n=1)


def is_exact(value: Interval) -> bool:
    """Whether a value has no interval."""
    return value.coverage == _CERTAIN


def over_rounds(values: Mapping[int, float], records: Sequence[Record], measure: MeasureSpec) -> Interval:
    """The values by round of some `records`: their median with its interval, or the one simulated value."""
    if records[0].provenance == "simulated":
        return exact(next(iter(values.values())))
    return median_interval([value for value in by_block(values, measure.block_of).values() if value is not None])


def by_block(values: Mapping[int, float | None], block_of: Callable[[int], int]) -> dict[int, float | None]:
    """The median of the values of each block of rounds, by block; None where no round of a block has a value.

    Rounds on weights that were loaded once share the place of these weights in memory, so that a block counts once,
    however many rounds it has.
    """
    blocks: dict[int, list[float]] = {}
    for number, value in values.items():
        blocks.setdefault(block_of(number), []).extend([] if value is None else [value])
    return {block: median(found) if found else None for block, found in blocks.items()}


def open_reason(values: Sequence[float | None], measure: MeasureSpec) -> str:
    """Why the interval of the values of rounds, or of blocks of them, has not reached the goal.

    Empty where it has, or where there are no values. None stands for a round that was measured, but with the cores
    elsewhere than those of the baseline.
    """
    found, interval, goal = [value for value in values if value is not None], interval_of(values), measure.goal
    if not values or (interval and interval.closed(goal)):
        return ""
    if interval and interval.sound:
        return f"the interval stayed at ±{interval.half_width:.1%}, the goal was ±{goal:.1%}"
    if len(found) < len(values):
        counted = rounds_text(len(values), measure.unit)
        return f"{len(found)} of {counted} compare cores in the same place, an interval of 95% needs 6"
    return f"{rounds_text(len(found), measure.unit)} of the 6 that an interval of 95% needs"


def rounds_text(count: int, unit: str = "round") -> str:
    """`1 round`, `2 rounds`."""
    return f"{count} {unit}{'' if count == 1 else 's'}"
