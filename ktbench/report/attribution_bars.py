"""The bars of a waterfall of shares: where each begins and ends on an axis of factors, for print and for the page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from ktbench.report.attribution_table import TOTAL
from ktbench.report.text import DASH
from ktbench.results.attribution import Attribution, FeatureAttribution
from ktbench.results.intervals import Interval, is_exact

Kind = Literal["base", "gain", "loss", "whole"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Bar:
    """A bar from one factor to another; `whisker` is where its end may lie. Without `end` the text says why.

    `factor` is the step that it makes, `part` that step's share of the log speed-up.
    """

    name: str
    kind: Kind
    start: float
    end: float | None
    text: str
    factor: Interval | None = None
    part: Interval | None = None
    whisker: Interval | None = None

    @property
    def top(self) -> float:
        """Where bar and whisker end above."""
        ends = [self.start, self.end or self.start, self.whisker.high if self.whisker else self.start]
        return max(ends)

    @property
    def bottom(self) -> float:
        """Where bar and whisker end below."""
        return min(self.start, self.end or self.start, self.whisker.low if self.whisker else self.start)


def bars_of(one: Attribution) -> tuple[Bar, ...]:
    """The baseline, the features and all together, from left to right.

    Shares lead from 1 to the total. Without them each feature hangs from the total down to the speed-up without it.
    """
    return (Bar(name=one.baseline, kind="base", start=1.0, end=1.0, text="1"), *_steps(one), _total(one))


def _steps(one: Attribution) -> Iterator[Bar]:
    at = 1.0
    for share in one.shares:
        if one.orders and share.factor is not None:
            yield _step(share, at, share.factor)
            at *= share.factor.mid
        elif not one.orders and one.total is not None and share.last is not None:
            yield _step(share, one.total.mid / share.last.mid, share.last)
        else:
            yield Bar(name=share.feature, kind="base", start=1.0, end=None, text=DASH)


def _step(share: FeatureAttribution, start: float, factor: Interval) -> Bar:
    whisker = Interval(
        low=start * factor.low, mid=start * factor.mid, high=start * factor.high, coverage=factor.coverage, n=factor.n
    )
    part = f"\n{100 * share.part.mid:.0f} %" if share.part else ""
    return Bar(
        name=share.feature,
        kind="gain" if factor.mid >= 1 else "loss",
        start=start,
        end=whisker.mid,
        text=f"×{factor.mid:.{3 if factor.mid < 2 else 2}f}{part}",
        factor=factor,
        part=share.part,
        whisker=None if is_exact(factor) else whisker,
    )


def _total(one: Attribution) -> Bar:
    if one.total is None:
        return Bar(name=TOTAL, kind="whole", start=1.0, end=None, text=DASH)
    mid = one.total.mid
    text = f"×{mid:.{3 if mid < 2 else 2}f}"
    whisker = None if is_exact(one.total) else one.total
    return Bar(name=TOTAL, kind="whole", start=1.0, end=mid, text=text, factor=one.total, whisker=whisker)
