"""Means over documents of unlike length: losses in nats, divergences, shares of positions, perplexity."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import exp, sqrt

from ktbench.results.stats.scores import Estimate
from ktbench.results.stats.student import student_quantile


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


def exponential(mean: Estimate) -> Estimate:
    """What a mean of logarithms is of: perplexity of a mean loss, a ratio of perplexities of a difference of losses."""
    low, high = (None if end is None else exp(end) for end in (mean.low, mean.high))
    mid = exp(mean.mid)
    return replace(mean, mid=mid, se=None if mean.se is None else mid * mean.se, low=low, high=high)
