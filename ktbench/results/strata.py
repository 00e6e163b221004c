"""Intervals of averages over tasks: the limits of each task, and how those of several are put together.

Questions of one cluster (about the same text, say) are answered alike; clusters are independent, and so are tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from math import erf, fsum, inf, sqrt
from statistics import NormalDist, fmean

from ktbench.results.intervals import CONFIDENCE
from ktbench.results.settings import group_by

Ends = tuple[float, float]
# How far a limit may lie from a task's mean, by the number of standard errors.
_Distance = Callable[[float], float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Stratum:
    """The values of one task's questions, at least one, and the task's share of the average; shares sum to 1.

    `clusters` names the cluster of each value, empty for one that is a cluster of its own; without any all are.
    """

    share: float
    values: tuple[float, ...]
    clusters: tuple[str, ...] = ()

    @property
    def mean(self) -> float:
        """The mean of its values."""
        return fmean(self.values)

    @property
    def is_clustered(self) -> bool:
        """Whether questions of it are of named clusters."""
        return any(self.clusters)

    def sums(self, values: Sequence[float]) -> list[float]:
        """The sum of `values`, one for each of its questions, over each cluster."""
        if not self.is_clustered:
            return list(values)
        keys = (cluster or number for number, cluster in enumerate(self.clusters))
        return [fsum(held) for held in group_by(zip(keys, values, strict=True)).values()]


def variance_of(stratum: Stratum) -> float | None:
    """Variance of the mean of a stratum; None of a single question or cluster.

    Of clusters it is that of the mean as a ratio of their sums to their sizes, times G / (G - 1) for G clusters.
    Source: Cochran, Sampling Techniques (1977), chapter 9A; Cameron and Miller, J. Human Resources 50 (2015) 317.
    """
    mean = stratum.mean
    sums = stratum.sums([value - mean for value in stratum.values])
    if len(sums) < 2:
        return None
    return fsum(one * one for one in sums) * len(sums) / (len(sums) - 1) / len(stratum.values) ** 2


def ends_of_average(strata: Sequence[Stratum], least: float) -> Ends | None:
    """Ends of the 95 % interval of an average of values between `least` and 1; None where one task has no limits.

    `least` is 0 for scores and -1 for differences of scores. A task has Wilson's limits, of differences Tango's, where
    every question is right or wrong, else those of Student's t. Clustered questions count for as many independent ones
    as have the same variance (Rao and Scott, Biometrics 48 (1992) 577), and the quantile is that of t with a degree of
    freedom less than clusters (Korn and Graubard, Survey Methodology 24 (1998) 193).

    An end is the average of limits at z_i standard errors where the sum of z_i² is z², each z_i in proportion to what
    its task adds to the width per standard error: of normal limits that is the usual error of a weighted mean. A task
    without a flip adds what so few questions leave open, and tasks that are alike have the interval of all their
    questions together. Source: Yan and Su, Stat. Biopharm. Res. 2 (2010) 329, where all z_i are equal.
    """
    distances = [found for stratum in strata if (found := _distances(stratum, least))]
    if len(distances) < len(strata):
        return None
    shares, mid, z = [stratum.share for stratum in strata], mean_of(strata), normal_quantile()
    below, above = (_reach(shares, side, z) for side in zip(*distances, strict=True))
    # Rounding must not push an end past the average.
    return min(mid, max(least, mid - below)), max(mid, min(1.0, mid + above))


def mean_of(strata: Sequence[Stratum]) -> float:
    """The average."""
    return fsum(stratum.share * stratum.mean for stratum in strata)


_PASSES = 4  # of the division of z, which then changes by less than a hundredth of the width


def _reach(shares: Sequence[float], distances: Sequence[_Distance], z: float) -> float:
    """How far an end of an average lies from it."""
    parts = [z] * len(shares)
    for _ in range(_PASSES if len(shares) > 1 else 0):
        slopes = [
            share * distance(part) / part if part else 0.0
            for share, distance, part in zip(shares, distances, parts, strict=True)
        ]
        norm = sqrt(fsum(slope * slope for slope in slopes))
        parts = [z * slope / norm if norm else 0.0 for slope in slopes]
    reached = zip(shares, distances, parts, strict=True)
    return fsum(share * distance(part) for share, distance, part in reached if part)


def _distances(stratum: Stratum, least: float) -> tuple[_Distance, _Distance] | None:
    """Of the limits of one task, the lower and the upper.

    None where scores between right and wrong do not vary, which tells nothing of their spread.
    """
    if is_whole(stratum, least):
        return _of_counts(stratum, least)
    variance = variance_of(stratum)
    if not variance:
        return None
    df, se = len(stratum.sums(stratum.values)) - 1, sqrt(variance)
    return (lambda z: _student(z, df) * se,) * 2


def is_whole(stratum: Stratum, least: float) -> bool:
    """Whether every question was right or wrong, or of differences won, lost or neither."""
    return all(value in (least, 0.0, 1.0) for value in stratum.values)


def _of_counts(stratum: Stratum, least: float) -> tuple[_Distance, _Distance]:
    effect, mean = _design_effect(stratum), stratum.mean
    n = len(stratum.values) / effect
    lost, gained = (stratum.values.count(sign) / effect for sign in (-1.0, 1.0))
    df = len(stratum.sums(stratum.values)) - 1 if stratum.is_clustered else 0
    quantile: _Distance = (lambda z: _student(z, df)) if df else (lambda z: z)
    if least < 0:
        return (
            lambda z: mean - _tango_low(lost, gained, n, quantile(z)),
            lambda z: -_tango_low(gained, lost, n, quantile(z)) - mean,
        )
    return (
        lambda z: mean - _wilson_low(mean, n, quantile(z)),
        lambda z: 1 - _wilson_low(1 - mean, n, quantile(z)) - mean,
    )


def _design_effect(stratum: Stratum) -> float:
    """Variance of the mean over that of independent questions, at least 1.

    Where no value differs from another, or there is one cluster alone, it is the most that the sizes of the clusters
    allow: that of clusters whose questions are all answered alike.
    """
    if not stratum.is_clustered:
        return 1.0
    clustered, alone = variance_of(stratum), variance_of(Stratum(share=1.0, values=stratum.values))
    if clustered is not None and alone:
        return max(1.0, clustered / alone)
    return fsum(size * size for size in stratum.sums([1.0] * len(stratum.values))) / len(stratum.values)


def wilson_interval(right: float, n: float) -> Ends:
    """Ends of the 95 % score interval of the proportion right / n. Counts may be effective ones, not whole.

    Source: Wilson, JASA 22 (1927) 209; recommended by Newcombe, Stat. Med. 17 (1998) 857, method 3. Raises ValueError
    for counts that no sample can have.
    """
    if not 0 <= right <= n or n <= 0:
        raise ValueError(f"right={right}, n={n}: must be 0 <= right <= n, n above 0")
    z = normal_quantile()
    return _wilson_low(right / n, n, z), 1 - _wilson_low(1 - right / n, n, z)


def _wilson_low(p: float, n: float, z: float) -> float:
    middle, half = p + z * z / (2 * n), z * sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    # At 0 it is the proportion itself, and rounding must not push it past.
    return max(0.0, min(p, (middle - half) / (1 + z * z / n)))


_HALVINGS = 48  # of an interval of 2 at most: to 1e-14


@lru_cache(4096)  # a table and its figure ask for the same counts
def _tango_low(lost: float, gained: float, n: float, z: float) -> float:
    low, high = -1.0, (gained - lost) / n
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if _statistic(middle, lost, gained, n) > z else (low, middle)
    return (low + high) / 2


def _statistic(delta: float, lost: float, gained: float, n: float) -> float:
    """The efficient score of the hypothesis that the difference is `delta`; falls as `delta` rises.

    Source: Tango, Stat. Med. 17 (1998) 891, on the difference of two proportions of the same n questions. The chance
    of a loss is taken as likely as it can be under the hypothesis, the larger root of his equation.
    """
    a, b = 2 * n, (2 * n - gained + lost) * delta - gained - lost
    root = sqrt(max(0.0, b * b + 4 * a * lost * delta * (1 - delta)))
    losing = (root - b) / (2 * a)
    variance = n * (2 * losing + delta * (1 - delta))
    over = gained - lost - n * delta
    if variance <= 0:
        return inf if over > 0 else -inf if over < 0 else 0.0
    return over / sqrt(variance)


@cache
def normal_quantile() -> float:
    """How many standard errors on either side hold a normal value with a chance of 95 %: 1.96."""
    return NormalDist().inv_cdf((1 + CONFIDENCE) / 2)


@cache
def student_quantile(df: int) -> float:
    """The same for Student's t with `df` degrees of freedom. Raises ValueError for fewer than one."""
    if df < 1:
        raise ValueError(f"df={df}: an interval needs at least one degree of freedom")
    return _student(normal_quantile(), df)


def _student(z: float, df: int) -> float:
    """The quantile of Student's t that holds as much as `z` standard errors of a normal value."""
    from scipy.special import stdtrit  # takes 0.2 s to load: only for those who need it

    return float(stdtrit(df, (1 + erf(z / sqrt(2))) / 2))
