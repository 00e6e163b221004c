"""Quantiles that half-widths of intervals are made with: of the normal distribution and of Student's t."""

from __future__ import annotations

from functools import cache
from math import atan, cos, pi, sin, sqrt
from statistics import NormalDist

from ktbench.results.stats.intervals import CONFIDENCE

# From here on half-widths by t and by the normal distribution differ by less than 0.13 %.
_NORMAL_FROM = 1000


@cache
def normal_quantile(confidence: float = CONFIDENCE) -> float:
    """How many standard errors to either side hold a normal value with `confidence`: 1.96 for 95 %."""
    return NormalDist().inv_cdf((1 + confidence) / 2)


@cache
def student_quantile(df: int, confidence: float = CONFIDENCE) -> float:
    """The same for Student's t with `df` degrees of freedom, by bisection of `inside`.

    Raises ValueError for fewer than one degree of freedom.
    """
    if df < 1:
        raise ValueError(f"df={df}: an interval needs at least one degree of freedom")
    if df >= _NORMAL_FROM:
        return normal_quantile(confidence)
    low, high = 0.0, 1.0
    while inside(high, df) < confidence:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if inside(middle, df) < confidence else (low, middle)
    return (low + high) / 2


def inside(t: float, df: int) -> float:
    """P(|T| <= t) of Student's t, a finite sum for whole `df` (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    angle = atan(t / sqrt(df))
    odd = df % 2
    term = cos(angle) if odd else 1.0
    total = 0.0
    for k in range(2 + odd, df + 1, 2):
        total += term
        term *= cos(angle) ** 2 * (k - 1) / k
    return 2 / pi * (angle + sin(angle) * total) if odd else sin(angle) * total
