"""Order-free attributions of a speed-up to features (Shapley values), and interactions of features.

All of them are contrasts: weighted sums of the log speed-ups of combinations of features, the empty one's being 0.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import log
from statistics import median

from ktbench.results.intervals import Interval, median_interval

Combination = frozenset[str]
# Weights of the log speed-ups of combinations.
Contrast = Mapping[Combination, float]
# Speed-ups over the empty combination by round, above 0; the empty combination itself is not among them.
Speedups = Mapping[Combination, Mapping[int, float]]

NOTHING: Combination = frozenset()


@dataclass(frozen=True, kw_only=True, slots=True)
class OrderFree:
    """Shares that sum to the log speed-up of all features, each as a contrast, over so many possible orders."""

    orders: int
    shares: dict[str, Contrast]


@dataclass(frozen=True, kw_only=True, slots=True)
class Interaction:
    """What two features gain together beyond what each gains alone, beside the features of `context`."""

    context: tuple[str, ...]
    contrast: Contrast


def order_free(features: Sequence[str], possible: Collection[Combination]) -> OrderFree | None:
    """Shares of `features`: the mean of what each adds, over all orders that add them one by one.

    An order counts where every combination on its way, the empty and the whole one included, is in `possible`; None
    where no order does. With all combinations these are Shapley's values (Shapley, Contributions to the Theory of Games
    II, 1953, 307); where some features need others the mean is over the orders that respect it (Faigle and Kern, Int.
    J. Game Theory 21 (1992) 249; for `one of several` Algaba et al., Discrete Math. 282 (2004) 1). Where one order
    alone is possible, a share is its step.
    """
    whole = frozenset(features)
    known = {NOTHING, *possible}
    before = _ways(NOTHING, [c for n in range(len(features) + 1) for c in _of_size(features, n)], known)
    after = _ways(whole, [c for n in range(len(features), -1, -1) for c in _of_size(features, n)], known)
    orders = before.get(whole, 0)
    if not orders:
        return None
    shares: dict[str, dict[Combination, float]] = {feature: {} for feature in features}
    for start, ways in before.items():
        for feature in whole - start:
            end = start | {feature}
            weight = ways * after.get(end, 0) / orders
            shares[feature][start] = shares[feature].get(start, 0.0) - weight
            shares[feature][end] = shares[feature].get(end, 0.0) + weight
    return OrderFree(orders=orders, shares={feature: _without_zeros(share) for feature, share in shares.items()})


def _of_size(features: Sequence[str], size: int) -> Iterator[Combination]:
    return map(frozenset, combinations(features, size))


def _ways(
    origin: Combination, ordered: Sequence[Combination], known: Collection[Combination]
) -> dict[Combination, int]:
    """In how many ways each known combination is reached from `origin`, one feature at a time; `ordered` from there."""
    ways: dict[Combination, int] = {}
    for here in ordered:
        if here not in known:
            continue
        found = 1 if here == origin else sum(n for there, n in ways.items() if len(there ^ here) == 1)
        if found:
            ways[here] = found
    return ways


def _without_zeros(contrast: Contrast) -> Contrast:
    return {combination: weight for combination, weight in contrast.items() if weight}


def first_step(feature: str, possible: Collection[Combination]) -> Contrast | None:
    """What a feature adds where there is no other; None where that was not possible."""
    return _step(NOTHING, feature, possible)


def last_step(feature: str, features: Sequence[str], possible: Collection[Combination]) -> Contrast | None:
    """What a feature adds to all others, as leaving one out shows it; None where that was not possible."""
    return _step(frozenset(features) - {feature}, feature, possible)


def _step(start: Combination, feature: str, possible: Collection[Combination]) -> Contrast | None:
    ends = {start, start | {feature}}
    return {start | {feature}: 1.0, start: -1.0} if ends <= {NOTHING, *possible} else None


def interaction(one: str, other: str, features: Sequence[str], possible: Collection[Combination]) -> Interaction | None:
    """Log s(C + one + other) - log s(C + one) - log s(C + other) + log s(C), s being speed-ups.

    The context C holds as few other features as it can, the empty one where that is possible, and of equally small
    ones the first in the order of `features`; None where there is none with all four combinations.
    """
    known = {NOTHING, *possible}
    others = [feature for feature in features if feature not in (one, other)]
    for context in (c for n in range(len(others) + 1) for c in combinations(others, n)):
        at = frozenset(context)
        contrast = {at | {one, other}: 1.0, at | {one}: -1.0, at | {other}: -1.0, at: 1.0}
        if contrast.keys() <= known:
            return Interaction(context=context, contrast=contrast)
    return None


def why_no_interaction(one: str, other: str, possible: Collection[Combination]) -> str:
    """Why two features have no interaction."""
    for here, there in ((one, other), (other, one)):
        if not any(here in combination and there not in combination for combination in possible):
            return f"{here} was not measured without {there}"
    if not any({one, other} <= combination for combination in possible):
        return f"{one} and {other} were not measured together"
    return f"{one} and {other} were nowhere measured both, each and neither beside the same features"


def total_of(features: Sequence[str]) -> Contrast:
    """The log speed-up of all features together."""
    return {frozenset(features): 1.0}


def estimate(contrast: Contrast, speedups: Speedups) -> Interval | None:
    """A contrast of log speed-ups (nats) with the interval of its values, each formed inside one round.

    `mid` is the contrast of the median speed-ups, so that shares sum exactly to the log of the median speed-up of all
    features, as in each round they sum to that round's. The ends are those of the distribution-free interval of the
    median over rounds, moved to hold `mid` where it lies beyond them. None where no round has all combinations.
    """
    found = _by_round(contrast, speedups)
    return _around(_of_medians(contrast, speedups), list(found.values())) if found else None


def share_of(part: Contrast, whole: Contrast, speedups: Speedups) -> Interval | None:
    """`part` as a share of `whole`, both contrasts, with the interval of the shares inside rounds.

    None where the interval of `whole` holds 0, as nothing has a share of what may be nothing, and where no round has
    all combinations. Of fewer than six rounds that interval is no evidence: whether values vary is known to its caller
    alone.
    """
    total = estimate(whole, speedups)
    if total is None or total.low <= 0 <= total.high:
        return None
    parts, wholes = _by_round(part, speedups), _by_round(whole, speedups)
    ratios = [parts[n] / wholes[n] for n in parts.keys() & wholes.keys() if wholes[n]]
    return _around(_of_medians(part, speedups) / total.mid, ratios) if ratios else None


def _by_round(contrast: Contrast, speedups: Speedups) -> dict[int, float]:
    """Values of a contrast in the rounds that have all its combinations."""
    parts = [(weight, speedups[combination]) for combination, weight in contrast.items() if combination]
    rounds = set.intersection(*(set(values) for _, values in parts))
    return {n: sum(weight * log(values[n]) for weight, values in parts) for n in sorted(rounds)}


def _of_medians(contrast: Contrast, speedups: Speedups) -> float:
    return sum(
        weight * log(median(speedups[combination].values())) for combination, weight in contrast.items() if combination
    )


def _around(mid: float, values: Sequence[float]) -> Interval:
    spread = median_interval(values)
    return replace(spread, low=min(spread.low, mid), mid=mid, high=max(spread.high, mid))
