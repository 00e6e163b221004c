"""Speed-ups, paired inside rounds or of independent samples, and the verdict on them: it needs the whole interval."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from itertools import accumulate
from math import comb, isfinite, log
from statistics import median
from typing import TypeAlias

from ktbench.results.intervals import CONFIDENCE, Interval, by_block, interval_of
from ktbench.spec.core_layout import CoreLayout, core_layout_of
from ktbench.spec.record import Record


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialTime:
    """The median step of one trial in seconds, on which machine it ran, and where on it the cores were."""

    step_s: float
    machine: str
    core_layout: CoreLayout | None


TrialTimes: TypeAlias = Mapping[int, TrialTime]


def trial_time(record: Record) -> TrialTime:
    """The trial of a record that has samples."""
    return TrialTime(step_s=median(record.samples_s), machine=record.env_id, core_layout=core_layout_of(record))


def comparable(one: TrialTimes, other: TrialTimes) -> tuple[dict[int, float], dict[int, float]]:
    """Seconds of both in the rounds in which one machine had their cores in the same place, where they stayed."""
    rounds = [n for n in one.keys() & other.keys() if _are_comparable(one[n], other[n])]
    return {n: one[n].step_s for n in rounds}, {n: other[n].step_s for n in rounds}


def _are_comparable(one: TrialTime, other: TrialTime) -> bool:
    return one.core_layout == other.core_layout != "moved" and one.machine == other.machine


def goal_values(
    mine: TrialTimes, baseline: TrialTimes | None, control: TrialTimes | None, *, is_baseline: bool
) -> Values:
    """By round, the values that the precision goal of a cell is about.

    Speed-ups over the baseline, which a drift of the whole machine does not touch; for the baseline itself those of its
    control; seconds a step where there is nothing to compare with. None in a round in which both were measured, but
    with the cores in different places.
    """
    shown = control if is_baseline else mine
    both = baseline.keys() & shown.keys() if baseline and shown else set()
    if not (baseline and shown and both):
        return {number: trial.step_s for number, trial in mine.items()}
    ratios = paired_ratios(*comparable(baseline, shown))
    return {number: ratios.get(number) for number in sorted(both)}


Values: TypeAlias = dict[int, float | None]
# The smallest step that the paper's breakdown claims is 1.027 (+d, decode) and the largest that it calls none is 1.002
# (+c, prefill); 2 % parts the two. It also covers what the place of a cell in its round can do to it.
MARGIN = 0.02


class Verdict(StrEnum):
    """The verdict on an interval of speed-ups."""

    UNSURE = "unsure"
    FASTER = "faster"
    SLOWER = "slower"
    SAME = "same"


def judge(speedup: Interval | None, margin: float = MARGIN) -> Verdict:
    """The verdict on a speed-up (1 means equal), whose interval includes what equal cells differ by if that is known.

    FASTER and SLOWER need the whole interval beyond the margin, SAME needs it within. The margin is a ratio: from
    1 / (1 + margin) to 1 + margin, so that exchanging two cells exchanges FASTER and SLOWER and nothing else.
    """
    if speedup is None or not speedup.sound:
        return Verdict.UNSURE
    least, most = 1 / (1 + margin), 1 + margin
    if least <= speedup.low and speedup.high <= most:
        return Verdict.SAME
    if speedup.low > most:
        return Verdict.FASTER
    if speedup.high < least:
        return Verdict.SLOWER
    return Verdict.UNSURE


def paired_ratios(baseline: Mapping[int, float], cell: Mapping[int, float]) -> dict[int, float]:
    """Speed-up, baseline / cell, by round, for the rounds that both have; times in any one unit, above 0."""
    return {number: baseline[number] / cell[number] for number in sorted(baseline.keys() & cell.keys())}


def paired_interval(
    baseline: Mapping[int, float], cell: Mapping[int, float], block_of: Callable[[int], int] = lambda number: number
) -> Interval | None:
    """Interval of the speed-up of `cell` over `baseline`; None where no round has both.

    Rounds of one block count as one value, the median of their ratios: what cells differ by for as long as their
    weights lie where they lie is one draw, and the interval, that of the median of independent values, is then over
    draws (blocks as clusters, summarised: Donner and Klar, Cluster Randomization Trials, 2000, section 7.2).
    """
    return interval_of(by_block(paired_ratios(baseline, cell), block_of).values())


def unpaired_interval(baseline: Sequence[float], cell: Sequence[float]) -> Interval | None:
    """Interval of the speed-up, baseline / cell, of times that do not belong together; None where one side has none.

    Times in any one unit, above 0. The shift is taken on log times, so that it is a ratio, and exchanging the two
    sides gives its inverse. Assumes that either sample is independent draws of one distribution and that the two
    distributions differ by a factor alone.
    """
    if not baseline or not cell:
        return None
    return shift_interval([log(seconds) for seconds in baseline], [log(seconds) for seconds in cell]).exponential()


def shift_interval(one: Sequence[float], other: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """How far `one` lies above `other`: the Hodges-Lehmann estimate with the exact interval of Mann and Whitney.

    The estimate is the median of all differences one[i] - other[j], the interval lies between two of them. `coverage`
    is exact without ties and at least that with them; `n` is the size of the smaller sample. With too few values for
    `confidence` (four on both sides are enough for 95 %) it spans all differences and has its true coverage. Raises
    ValueError where a side is empty or a value not finite. Source: Hollander and Wolfe, Nonparametric Statistical
    Methods (1999), sections 4.2 and 4.3.
    """
    if not one or not other:
        raise ValueError("no values: a shift needs at least one on both sides")
    if not all(isfinite(value) for value in (*one, *other)):
        raise ValueError(f"values {[*one]} and {[*other]}: every one must be finite")
    differences = sorted(mine - theirs for mine in one for theirs in other)
    rank = _innermost(len(one), len(other), confidence)
    return Interval(
        low=differences[rank - 1],
        mid=median(differences),
        high=differences[-rank],
        coverage=shift_coverage(len(one), len(other), rank),
        n=min(len(one), len(other)),
    )


def shift_coverage(m: int, n: int, rank: int) -> float:
    """Chance that the shift lies between differences number `rank` and m*n+1-`rank` of samples of m and n values.

    1 - 2 P(U < rank), U being Mann and Whitney's statistic.
    """
    outside = 2 * sum(_ways(m, n)[:rank])
    return max(0.0, 1 - outside / comb(m + n, m))


@cache
def _innermost(m: int, n: int, confidence: float) -> int:
    """Rank, counted from 1, of the innermost difference whose interval has `confidence`; else 1."""
    total, ways = comb(m + n, m), _ways(m, n)[: (m * n + 1) // 2]
    return max(1, sum(1 - 2 * outside / total >= confidence for outside in accumulate(ways)))


@cache
def _ways(m: int, n: int) -> tuple[int, ...]:
    """In how many of the orders of m and n values U is 0, 1, … m*n: the coefficients of a Gaussian binomial.

    The product of (1 - q^(n+i)) / (1 - q^i) for i of 1 to m. Source: Andrews, The Theory of Partitions (1976), 3.2.
    """
    ways = [1] + [0] * (m * n)
    for i in range(1, m + 1):
        for u in range(m * n, n + i - 1, -1):
            ways[u] -= ways[u - n - i]
        for u in range(i, m * n + 1):
            ways[u] += ways[u - i]
    return tuple(ways)
