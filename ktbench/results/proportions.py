"""Score intervals of a proportion and of the difference of two paired ones; quantiles for half-widths of intervals."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import inf, sqrt
from statistics import NormalDist

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
