"""Scores of tasks and their averages: standard errors, intervals, and the paired change against a baseline.

Values are from 0 to 1. Intervals of averages are made in `ktbench.results.strata`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import chain
from math import exp, floor, fsum, sqrt
from types import MappingProxyType
from typing import NamedTuple

from ktbench.results.strata import Stratum, ends_of_average, is_whole, mean_of, student_quantile, variance_of

SURE = 0.05  # a p above it is noise


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """A mean over `n` questions with its standard error and its 95 % interval.

    They are None where a task has a single question or cluster; the interval where scores between 0 and 1 do not vary.
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


class ScoreVerdict(StrEnum):
    """The verdict on a paired change. Never `same`: that would need a margin within which scores count as equal."""

    NONE_SHOWN = "no difference shown"
    LOWER = "lower"
    HIGHER = "higher"


class Pair(NamedTuple):
    """Score of one question before a change and after it, and the cluster that it is of, empty for one of its own."""

    before: float
    after: float
    cluster: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Flips:
    """How many questions score lower and how many higher than before: right to wrong, and wrong to right.

    `clusters`, where questions are clustered: how many clusters score lower as a whole, and how many higher.
    """

    lost: int
    gained: int
    clusters: tuple[int, int] | None = None

    @property
    def p(self) -> float:
        """Exact McNemar, two-sided: how likely as uneven a split is where losing and gaining are equally likely.

        min(1, 2 P(Binomial(lost + gained, 1/2) <= min(lost, gained))), the mid-p correction not applied. Source:
        McNemar, Psychometrika 12 (1947) 153; Agresti, Categorical Data Analysis (2013), section 11.1. Of scores between
        0 and 1 it is the sign test, of which McNemar's is a case; of clustered questions the sign test of clusters, as
        questions of one cluster are not independent.
        """
        from scipy.special import bdtr  # takes 0.2 s to load: only for those who need it

        lower, higher = self.clusters or (self.lost, self.gained)
        return min(1.0, 2 * float(bdtr(min(lower, higher), lower + higher, 0.5)))


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
    """Average of strata with the interval of `ends_of_average`: Wilson's where answers are right or wrong."""
    return _estimate(strata, 0.0)


def change_of(strata: Sequence[tuple[float, Sequence[Pair]]]) -> Change:
    """The paired change over tasks, each with its share of the average and the pairs of its questions.

    The interval of the difference is that of `ends_of_average`: Tango's where every question is won, lost or neither.
    """
    before = [_stratum(share, pairs, [pair.before for pair in pairs]) for share, pairs in strata]
    moved = [_stratum(share, pairs, [pair.after - pair.before for pair in pairs]) for share, pairs in strata]
    flips = flips_of(*(pairs for _, pairs in strata))
    base, difference = mean_of(before), _estimate(moved, -1.0)
    are_whole = all(is_whole(stratum, -1.0) for stratum in moved)
    return Change(
        base=base,
        difference=difference,
        relative=_over(difference, base) if base > 0 else None,
        flips=flips,
        verdict=_verdict(difference, flips if are_whole else None),
    )


def _stratum(share: float, pairs: Sequence[Pair], values: Sequence[float]) -> Stratum:
    return Stratum(share=share, values=tuple(values), clusters=tuple(pair.cluster for pair in pairs))


def pairs_of(
    before: Mapping[str, float], after: Mapping[str, float], clusters: Mapping[str, str] = MappingProxyType({})
) -> tuple[Pair, ...]:
    """Scores of the questions that both have, by question, in the order of `before`; `clusters` by question."""
    both = (question for question in before if question in after)
    return tuple(Pair(before[question], after[question], clusters.get(question, "")) for question in both)


def flips_of(*tasks: Sequence[Pair]) -> Flips:
    """Flips between the two scores of each question of some tasks; clusters do not reach from one to another."""
    pairs = [*chain(*tasks)]
    lost, gained = _moves(pair.after - pair.before for pair in pairs)
    if not any(pair.cluster for pair in pairs):
        return Flips(lost=lost, gained=gained)
    moved = (_stratum(1.0, task, [pair.after - pair.before for pair in task]) for task in tasks)
    return Flips(lost=lost, gained=gained, clusters=_moves(chain.from_iterable(one.sums(one.values) for one in moved)))


def _moves(differences: Iterable[float]) -> tuple[int, int]:
    """How many fell, and how many rose."""
    signs = [(one > 0) - (one < 0) for one in differences]
    return signs.count(-1), signs.count(1)


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


def _estimate(strata: Sequence[Stratum], least: float) -> Estimate:
    low, high = ends_of_average(strata, least) or (None, None)
    n = sum(len(stratum.values) for stratum in strata)
    return Estimate(mid=mean_of(strata), se=_standard_error(strata), low=low, high=high, n=n)


def _standard_error(strata: Sequence[Stratum]) -> float | None:
    """Of the average of strata: each with its own variance. None where a stratum has a single question or cluster."""
    variances = [(stratum.share, variance_of(stratum)) for stratum in strata]
    known = [share**2 * variance for share, variance in variances if variance is not None]
    return sqrt(fsum(known)) if len(known) == len(strata) else None
