"""Shares against the brute-force mean over orders, and the properties that define them."""

from __future__ import annotations

from itertools import combinations, permutations
from math import exp, log
from random import Random
from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ktbench.results.contrasts import (
    NOTHING,
    Combination,
    Contrast,
    Speedups,
    estimate,
    first_step,
    interaction,
    last_step,
    order_free,
    share_of,
    total_of,
    why_no_interaction,
)

ABCD = ("a", "b", "c", "d")


def every(features: tuple[str, ...]) -> list[Combination]:
    return [frozenset(chosen) for n in range(1, len(features) + 1) for chosen in combinations(features, n)]


def measured(features: tuple[str, ...], possible: list[Combination], seed: int, rounds: int = 7) -> Speedups:
    rng = Random(seed)
    return {one: {n: exp(rng.gauss(0.2 * len(one), 0.5)) for n in range(rounds)} for one in possible}


def by_orders(features: tuple[str, ...], worth: dict[Combination, float]) -> tuple[dict[str, float], int]:
    """The definition: walk every order, count those that stay on known combinations, average what each step adds."""
    sums, orders = dict.fromkeys(features, 0.0), 0
    for order in permutations(features):
        path = [frozenset(order[:n]) for n in range(len(order) + 1)]
        if all(one in worth for one in path):
            orders += 1
            for feature, before, after in zip(order, path, path[1:], strict=False):
                sums[feature] += worth[after] - worth[before]
    return {feature: total / orders for feature, total in sums.items()} if orders else {}, orders


def value(contrast: Contrast, worth: dict[Combination, float]) -> float:
    return sum(weight * worth[one] for one, weight in contrast.items())


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 4), st.sets(st.sampled_from(every(ABCD)), max_size=9), st.integers(0, 999))
def test_shares_are_the_mean_over_possible_orders(count: int, missing: set[Combination], seed: int) -> None:
    features = ABCD[:count]
    possible = [one for one in every(features) if one not in missing or len(one) == count]
    rng = Random(seed)
    worth = {NOTHING: 0.0} | {one: rng.gauss(0, 1) for one in possible}
    expected, orders = by_orders(features, worth)
    found = order_free(features, possible)
    assert (found.orders if found else 0) == orders
    if found:
        shares = {feature: value(share, worth) for feature, share in found.shares.items()}
        assert shares == pytest.approx(expected, abs=1e-12)
        assert sum(shares.values()) == pytest.approx(worth[frozenset(features)], abs=1e-12)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 999))
def test_shares_sum_to_the_total_in_each_round_and_in_the_medians(seed: int) -> None:
    speedups = measured(ABCD, every(ABCD), seed)
    found = order_free(ABCD, speedups)
    assert found is not None
    for number in range(7):
        worth = {NOTHING: 0.0} | {one: log(values[number]) for one, values in speedups.items()}
        assert sum(value(share, worth) for share in found.shares.values()) == pytest.approx(worth[frozenset(ABCD)])
    shares = [estimate(share, speedups) for share in found.shares.values()]
    whole = median(speedups[frozenset(ABCD)].values())
    assert sum(share.mid for share in shares if share) == pytest.approx(log(whole))
    assert all(share and share.low <= share.mid <= share.high and share.sound for share in shares)


def test_equal_features_get_equal_shares_and_an_idle_one_nothing() -> None:
    worth = {one: 0.3 * len(one & {"a", "b"}) ** 2 for one in [NOTHING, *every(("a", "b", "c"))]}
    found = order_free(("a", "b", "c"), worth)
    assert found is not None and found.orders == 6
    shares = {feature: value(share, worth) for feature, share in found.shares.items()}
    assert shares == pytest.approx({"a": 0.6, "b": 0.6, "c": 0.0})


def test_what_needs_another_is_added_after_it() -> None:
    possible = [one for one in every(("v", "d", "l")) if "v" in one]
    found = order_free(("v", "d", "l"), possible)
    assert found is not None and found.orders == 2
    assert found.shares["v"] == {frozenset("v"): 1.0, NOTHING: -1.0}
    assert first_step("v", possible) == found.shares["v"]
    assert first_step("d", possible) is None
    assert last_step("d", ("v", "d", "l"), possible) == {frozenset("vdl"): 1.0, frozenset("vl"): -1.0}
    assert last_step("v", ("v", "d", "l"), possible) is None


def test_a_ladder_has_one_order_and_leave_one_out_none() -> None:
    ladder = [frozenset("a"), frozenset("ab"), frozenset("abc")]
    found = order_free(("a", "b", "c"), ladder)
    assert found is not None and found.orders == 1
    assert found.shares["c"] == {frozenset("abc"): 1.0, frozenset("ab"): -1.0}
    assert order_free(("a", "b", "c"), [frozenset("abc"), frozenset("ab"), frozenset("ac"), frozenset("bc")]) is None


def test_an_interaction_is_told_in_the_smallest_context_that_has_all_four() -> None:
    free = interaction("a", "b", ("a", "b", "c"), every(("a", "b", "c")))
    assert free is not None and free.context == ()
    assert free.contrast == {frozenset("ab"): 1.0, frozenset("a"): -1.0, frozenset("b"): -1.0, NOTHING: 1.0}
    possible = [one for one in every(("v", "d", "l")) if "v" in one]
    needing = interaction("d", "l", ("v", "d", "l"), possible)
    assert needing is not None and needing.context == ("v",)
    assert interaction("v", "d", ("v", "d", "l"), possible) is None
    assert why_no_interaction("v", "d", possible) == "d was not measured without v"
    assert why_no_interaction("a", "b", [frozenset("a"), frozenset("b")]) == "a and b were not measured together"


def test_features_that_multiply_do_not_interact() -> None:
    speedups = {frozenset("a"): {0: 2.0}, frozenset("b"): {0: 3.0}, frozenset("ab"): {0: 6.0}}
    found = interaction("a", "b", ("a", "b"), speedups)
    assert found is not None
    number = estimate(found.contrast, speedups)
    assert number is not None and number.exponential().mid == pytest.approx(1.0)


def test_values_are_formed_inside_rounds_so_that_a_common_drift_is_gone() -> None:
    drift = [1.0, 3.0, 0.5, 7.0, 2.0, 0.1]
    speedups = {frozenset("a"): {n: 2.0 * d for n, d in enumerate(drift)}}
    speedups[frozenset("ab")] = {n: 3.0 * d for n, d in enumerate(drift)}
    step = estimate({frozenset("ab"): 1.0, frozenset("a"): -1.0}, speedups)
    assert step is not None
    assert (step.low, step.high) == pytest.approx((log(1.5), log(1.5)))


def test_without_a_common_round_or_a_total_there_is_no_number() -> None:
    apart = {frozenset("a"): {0: 2.0}, frozenset("ab"): {1: 3.0}}
    assert estimate({frozenset("ab"): 1.0, frozenset("a"): -1.0}, apart) is None
    around = {frozenset("a"): dict(enumerate([0.9, 1.1, 0.95, 1.05, 0.97, 1.02]))}
    assert share_of({frozenset("a"): 1.0}, total_of(("a",)), around) is None
    sure = {frozenset("a"): dict(enumerate([1.9, 2.1, 2.0, 2.2, 2.05, 1.95]))}
    part = share_of({frozenset("a"): 1.0}, total_of(("a",)), sure)
    assert part is not None and (part.low, part.mid, part.high) == pytest.approx((1.0, 1.0, 1.0))
