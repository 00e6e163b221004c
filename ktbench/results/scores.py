"""Scores of tasks and their averages: standard errors, intervals, and the paired change against a baseline.

An average of tasks is a sum over questions, each with its share of it; the statistics respect those shares. Values are
from 0 to 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from math import exp, floor, fsum, inf, sqrt
from statistics import NormalDist, fmean

from ktbench.results.intervals import CONFIDENCE


def wilson_interval(right: float, n: float, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Ends of the score interval of the proportion right / n. Counts may be effective ones, so they need not be whole.

    Source: Wilson, JASA 22 (1927) 209; recommended by Newcombe, Stat. Med. 17 (1998) 857, method 3. Raises ValueError
    for counts that no sample can have.
    """
    if not 0 <= right <= n or n <= 0:
        raise ValueError(f"right={right}, n={n}: must be 0 <= right <= n, n above 0")
    z, p = normal_quantile(confidence), right / n
    middle, half = p + z * z / (2 * n), z * sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    # At 0 and 1 an end is the proportion itself, and rounding must not push it past.
    return max(0.0, min(p, (middle - half) / scale)), min(1.0, max(p, (middle + half) / scale))


def tango_interval(lost: float, gained: float, n: float, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Ends of the score interval of (gained - lost) / n, the difference of two proportions of the same n questions.

    `lost` were right before and are wrong now, `gained` the reverse; effective counts need not be whole. Source: Tango,
    Stat. Med. 17 (1998) 891. Raises ValueError for counts that no sample can have.
    """
    if min(lost, gained) < 0 or lost + gained > n * (1 + 1e-9) or n <= 0:
        raise ValueError(f"lost={lost}, gained={gained}, n={n}: must be 0 or above and together at most n, n above 0")
    z = normal_quantile(confidence)
    difference = (gained - lost) / n
    low = _crossing(lambda delta: _statistic(delta, lost, gained, n) > z, -1.0, difference)
    high = _crossing(lambda delta: _statistic(delta, lost, gained, n) >= -z, difference, 1.0)
    return low, high


def _statistic(delta: float, lost: float, gained: float, n: float) -> float:
    """Tango's efficient score of the hypothesis that the difference is `delta`; falls as `delta` rises.

    The chance of a loss is taken as likely as it can be under the hypothesis, the larger root of Tango's equation.
    """
    a, b = 2 * n, (2 * n - gained + lost) * delta - gained - lost
    root = sqrt(max(0.0, b * b + 4 * a * lost * delta * (1 - delta)))
    losing = (root - b) / (2 * a)
    variance = n * (2 * losing + delta * (1 - delta))
    over = gained - lost - n * delta
    if variance <= 0:
        return inf if over > 0 else -inf if over < 0 else 0.0
    return over / sqrt(variance)


_HALVINGS = 48  # of an interval of 2 at most: to 1e-14


def _crossing(holds: Callable[[float], bool], low: float, high: float) -> float:
    """Where a condition that holds below some value stops to hold."""
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return (low + high) / 2


@cache
def normal_quantile(confidence: float = CONFIDENCE) -> float:
    """How many standard errors on either side hold a normal value with `confidence`: 1.96 for 95 %."""
    return NormalDist().inv_cdf((1 + confidence) / 2)


@cache
def student_quantile(df: int, confidence: float = CONFIDENCE) -> float:
    """The same for Student's t with `df` degrees of freedom. Raises ValueError for fewer than one."""
    if df < 1:
        raise ValueError(f"df={df}: an interval needs at least one degree of freedom")
    from scipy.special import stdtrit  # takes 0.2 s to load: only for those who need it

    return float(stdtrit(df, (1 + confidence) / 2))


SURE = 0.05  # a p above it is noise


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """A mean over `n` questions with its standard error and its 95 % interval.

    They are None where a task has a single question; the interval also where scores between 0 and 1 do not vary.
    """

    mid: float
    se: float | None
    low: float | None
    high: float | None
    n: int

    def mapped(self, function: Callable[[float], float]) -> Estimate:
        """A rising function of the mean and of the ends of its interval; the standard error stays."""
        low, high = (None if end is None else function(end) for end in (self.low, self.high))
        return replace(self, mid=function(self.mid), low=low, high=high)


@dataclass(frozen=True, kw_only=True, slots=True)
class Stratum:
    """The values of one task's questions, at least one, and the task's share of the average; shares sum to 1."""

    share: float
    values: tuple[float, ...]


class ScoreVerdict(StrEnum):
    """The verdict on a paired change. Never `same`: that would need a margin within which scores count as equal."""

    NONE_SHOWN = "no difference shown"
    LOWER = "lower"
    HIGHER = "higher"


# Score of one question: before the change and after it.
Pair = tuple[float, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Flips:
    """How many questions score lower and how many higher than before: right to wrong, and wrong to right."""

    lost: int
    gained: int

    @property
    def p(self) -> float:
        """Exact McNemar, two-sided: how likely as uneven a split is where losing and gaining are equally likely.

        min(1, 2 P(Binomial(lost + gained, 1/2) <= min(lost, gained))), the mid-p correction not applied. Source:
        McNemar, Psychometrika 12 (1947) 153; Agresti, Categorical Data Analysis (2013), section 11.1. Of scores between
        0 and 1 it is the sign test, of which McNemar's is a case.
        """
        from scipy.special import bdtr  # slow to load, as below

        return min(1.0, 2 * float(bdtr(min(self.lost, self.gained), self.lost + self.gained, 0.5)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """A score against the baseline's on the questions that both answered.

    `relative` is the difference over `base`, the baseline's score on these questions, which is taken as known: it is
    about the change on these very questions, and its ends are those of the difference. It excludes 0 where the
    difference does; of large losses it is wider than Fieller's interval. None where the baseline scored 0.
    """

    base: float
    difference: Estimate
    relative: Estimate | None
    flips: Flips
    verdict: ScoreVerdict


def score_of(strata: Sequence[Stratum]) -> Estimate:
    """Average of strata. The interval is Wilson's where answers are right or wrong, else Student's t.

    Where tasks weigh unlike, Wilson's is taken at the effective number of questions (Kish, Survey Sampling, 1965). What
    tasks differ by is not taken out of it, so it is rather too wide than too narrow.
    """
    mid, se = _mean(strata), _standard_error(strata)
    if any(value not in (0.0, 1.0) for stratum in strata for value in stratum.values):
        return _estimate(strata, mid, se, _student_ends(strata, mid, 0.0))
    n = _effective(strata)
    return _estimate(strata, mid, se, wilson_interval(min(n, mid * n), n))


def change_of(strata: Sequence[tuple[float, Sequence[Pair]]]) -> Change:
    """The paired change over tasks, each with its share of the average and the pairs of its questions.

    The interval of the difference is Tango's where every question is won, lost or neither, at the effective number of
    questions as in `score_of`; else Student's t of the differences.
    """
    before = [Stratum(share=share, values=tuple(one for one, _ in pairs)) for share, pairs in strata]
    moved = [Stratum(share=share, values=tuple(b - a for a, b in pairs)) for share, pairs in strata]
    flips = flips_of([pair for _, pairs in strata for pair in pairs])
    base, difference = _mean(before), _difference(moved)
    return Change(
        base=base,
        difference=difference,
        relative=_over(difference, base) if base > 0 else None,
        flips=flips,
        verdict=_verdict(difference, flips if _is_whole(moved) else None),
    )


def pairs_of(before: Mapping[str, float], after: Mapping[str, float]) -> tuple[Pair, ...]:
    """Scores of the questions that both have, by question, in the order of `before`."""
    return tuple((score, after[question]) for question, score in before.items() if question in after)


def flips_of(pairs: Sequence[Pair]) -> Flips:
    """Flips between the two scores of each question."""
    return Flips(
        lost=sum(after < before for before, after in pairs), gained=sum(after > before for before, after in pairs)
    )


def weighted_mean(values: Sequence[float], weights: Sequence[float]) -> Estimate:
    """Mean of `values`, each the mean over `weights` tokens of one document, with its interval over documents.

    Documents are what was drawn, not tokens, which depend on each other: a ratio estimator (Cochran, Sampling
    Techniques, 1977, chapter 6) with Student's t. Raises ValueError without a document.
    """
    if not values:
        raise ValueError("no values: a mean needs at least one document")
    n, total = len(values), sum(weights)
    mid = sum(value * weight for value, weight in zip(values, weights, strict=True)) / total
    if n < 2:
        return Estimate(mid=mid, se=None, low=None, high=None, n=n)
    squares = sum((weight * (value - mid)) ** 2 for value, weight in zip(values, weights, strict=True))
    se = sqrt(squares * n / (n - 1)) / total
    half = student_quantile(n - 1) * se
    return Estimate(mid=mid, se=se, low=mid - half, high=mid + half, n=n)


def mean_of_means(parts: Sequence[tuple[float, Estimate]]) -> Estimate:
    """The mean of independent means, each with its share; shares sum to 1.

    The interval is Student's t with Satterthwaite's degrees of freedom, as in scores; there is none where a part has no
    standard error.
    """
    mid, n = sum(share * part.mid for share, part in parts), sum(part.n for _, part in parts)
    if any(part.se is None for _, part in parts):
        return Estimate(mid=mid, se=None, low=None, high=None, n=n)
    variances = [(share * (part.se or 0.0)) ** 2 for share, part in parts]
    total, squares = sum(variances), [one**2 / (part.n - 1) for one, (_, part) in zip(variances, parts, strict=True)]
    half = student_quantile(max(1, floor(total**2 / sum(squares)))) * sqrt(total) if total else 0.0
    return Estimate(mid=mid, se=sqrt(total), low=mid - half, high=mid + half, n=n)


def exponential(mean: Estimate) -> Estimate:
    """The exponential of a mean: perplexity of a mean loss, ratio of perplexities of a difference of losses."""
    found = mean.mapped(exp)
    return replace(found, se=None if mean.se is None else found.mid * mean.se)


def _difference(moved: Sequence[Stratum]) -> Estimate:
    mid, se = _mean(moved), _standard_error(moved)
    if not _is_whole(moved):
        return _estimate(moved, mid, se, _student_ends(moved, mid, -1.0))
    n = _effective(moved)
    return _estimate(moved, mid, se, tango_interval(_share_of(moved, -1.0) * n, _share_of(moved, 1.0) * n, n))


def _share_of(moved: Sequence[Stratum], sign: float) -> float:
    """Which share of the average was won (1) or lost (-1)."""
    return sum(s.share * sum(value == sign for value in s.values) / len(s.values) for s in moved)


def _is_whole(moved: Sequence[Stratum]) -> bool:
    """Whether every question was won, lost or neither."""
    return all(value in (-1.0, 0.0, 1.0) for stratum in moved for value in stratum.values)


def _verdict(difference: Estimate, flips: Flips | None) -> ScoreVerdict:
    """Needs the whole interval on one side of 0 and, of answers that are right or wrong, flips beyond chance.

    Flips weigh all questions alike, the difference weighs tasks: the two must point the same way.
    """
    if difference.low is None or difference.high is None or (flips and not _bears_out(flips, difference)):
        return ScoreVerdict.NONE_SHOWN
    if difference.high < 0:
        return ScoreVerdict.LOWER
    return ScoreVerdict.HIGHER if difference.low > 0 else ScoreVerdict.NONE_SHOWN


def _bears_out(flips: Flips, difference: Estimate) -> bool:
    return flips.p <= SURE and (flips.gained - flips.lost) * difference.mid > 0


def _over(difference: Estimate, base: float) -> Estimate:
    """Relative to a known base; nothing loses more than all."""
    relative = difference.mapped(lambda value: max(-1.0, value / base))
    return replace(relative, se=None if difference.se is None else difference.se / base)


def _estimate(strata: Sequence[Stratum], mid: float, se: float | None, ends: tuple[float, float] | None) -> Estimate:
    low, high = ends or (None, None)
    return Estimate(mid=mid, se=se, low=low, high=high, n=sum(len(stratum.values) for stratum in strata))


def _mean(strata: Sequence[Stratum]) -> float:
    return sum(stratum.share * fmean(stratum.values) for stratum in strata)


def _standard_error(strata: Sequence[Stratum]) -> float | None:
    """Of the average of strata: each with its own variance. None where a stratum has a single question."""
    parts = _variances(strata)
    return None if parts is None else sqrt(sum(parts))


def _variances(strata: Sequence[Stratum]) -> list[float] | None:
    if any(len(stratum.values) < 2 for stratum in strata):
        return None
    return [s.share**2 * _variance(s.values) / len(s.values) for s in strata]


def _variance(values: Sequence[float]) -> float:
    """Unbiased; `statistics.variance` does it in fractions, which takes too long for thousands of questions."""
    mean = fmean(values)
    return fsum((value - mean) ** 2 for value in values) / (len(values) - 1)


def _effective(strata: Sequence[Stratum]) -> float:
    """The effective number of questions of equal weight: 1 / sum of squared weights (Kish)."""
    return 1 / sum(stratum.share**2 / len(stratum.values) for stratum in strata)


def _student_ends(strata: Sequence[Stratum], mid: float, least: float) -> tuple[float, float] | None:
    """The interval by Student's t within [least, 1]; degrees of freedom by Satterthwaite, Biometrics 2 (1946) 110."""
    parts = _variances(strata)
    if parts is None or not any(parts):
        return None
    sizes = [len(stratum.values) - 1 for stratum in strata]
    df = sum(parts) ** 2 / sum(part**2 / size for part, size in zip(parts, sizes, strict=True))
    half = student_quantile(max(1, floor(df))) * sqrt(sum(parts))
    return max(least, mid - half), min(1.0, mid + half)
