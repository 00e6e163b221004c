"""Hodges-Lehmann intervals against brute force, SciPy, a published example and samples whose shift is known."""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from math import comb, exp, log
from random import Random
from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import mannwhitneyu

from ktbench.results.speedups import shift_coverage, shift_interval, unpaired_interval

# Permeability of the human placenta at term and at 12 to 26 weeks: Hollander and Wolfe (1999), table 4.1.
TERM = (0.80, 0.83, 1.89, 1.04, 1.45, 1.38, 1.91, 1.64, 0.73, 1.46)
EARLY = (1.15, 0.88, 0.90, 0.74, 1.21)
SIZES = st.integers(min_value=1, max_value=6)


def ways_of(m: int, n: int) -> Counter[int]:
    """Mann and Whitney's statistic over all orders of m and n values, counted one by one."""
    places = range(m + n)
    return Counter(
        sum(mine > theirs for mine in ones for theirs in set(places) - {*ones}) for ones in combinations(places, m)
    )


def test_the_published_example() -> None:
    """Examples 4.3 and 4.4 of the book: estimate 0.305, and (-0.15, 0.76) with 96 %."""
    found = shift_interval(TERM, EARLY, confidence=0.95)
    assert (found.low, found.mid, found.high) == pytest.approx((-0.15, 0.305, 0.76))
    assert found.coverage == pytest.approx(0.960, abs=5e-4)
    assert found.n == 5


@given(m=SIZES, n=SIZES, data=st.data())
@settings(max_examples=30, deadline=None)
def test_coverage_is_that_of_all_orders(m: int, n: int, data: st.DataObject) -> None:
    rank = data.draw(st.integers(min_value=1, max_value=(m * n + 1) // 2))
    ways = ways_of(m, n)
    outside = sum(count for u, count in ways.items() if u < rank)
    assert shift_coverage(m, n, rank) == pytest.approx(max(0.0, 1 - 2 * outside / comb(m + n, m)))


@pytest.mark.parametrize(("m", "n", "rank"), [(6, 6, 6), (12, 12, 38), (12, 20, 70), (20, 20, 128)])
def test_coverage_agrees_with_scipy(m: int, n: int, rank: int) -> None:
    """Two-sided p of a sample whose U is rank - 1 is what an interval between those differences leaves outside."""
    one, other = _with_statistic(m, n, rank - 1)
    p = mannwhitneyu(one, other, alternative="two-sided", method="exact").pvalue
    assert shift_coverage(m, n, rank) == pytest.approx(1 - p, abs=1e-12)


def _with_statistic(m: int, n: int, u: int) -> tuple[list[float], list[float]]:
    """Two samples of which `one` exceeds `other` in u pairs."""
    above = [n] * (u // n) + [u % n] * (u % n > 0)
    above = [0] * (m - len(above)) + sorted(above)
    return [place - 0.5 + 0.01 * k for k, place in enumerate(above)], [float(k) for k in range(n)]


@given(m=SIZES, n=SIZES, seed=st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_the_interval_holds_the_shifts_that_the_test_does_not_reject(m: int, n: int, seed: int) -> None:
    rng = Random(seed)
    one, other = [rng.gauss(1, 1) for _ in range(m)], [rng.gauss(0, 1) for _ in range(n)]
    found = shift_interval(one, other)
    assert found.mid == pytest.approx(median(mine - theirs for mine in one for theirs in other))
    if not found.sound:
        return
    for shift, is_inside in ((found.low - 1e-9, False), (found.low + 1e-9, True), (found.high + 1e-9, False)):
        p = mannwhitneyu([x - shift for x in one], other, alternative="two-sided", method="exact").pvalue
        assert (p > 1 - 0.95 + 1e-12) == is_inside


@pytest.mark.parametrize(
    ("m", "n", "is_sound"), [(3, 3, False), (4, 4, True), (3, 5, True), (2, 7, False), (2, 8, True)]
)
def test_few_values_say_so(m: int, n: int, is_sound: bool) -> None:
    found = shift_interval([float(k) for k in range(m)], [k + 0.1 for k in range(n)])
    assert found.sound == is_sound
    if not is_sound:
        assert (found.low, found.high) == (-(n - 1) - 0.1, m - 1 - 0.1)


def test_it_is_a_ratio_and_turns_round_with_its_sides() -> None:
    slow, fast = [exp(x) for x in TERM], [exp(x) for x in EARLY]
    found, inverse = unpaired_interval(slow, fast), unpaired_interval(fast, slow)
    assert found is not None and inverse is not None
    assert (log(found.low), log(found.mid), log(found.high)) == pytest.approx((-0.15, 0.305, 0.76))
    assert (inverse.low, inverse.mid, inverse.high) == pytest.approx((1 / found.high, 1 / found.mid, 1 / found.low))


def test_it_covers_as_often_as_it_says() -> None:
    """Samples of one skewed distribution, 1.2 times apart."""
    rng, trials, hits = Random(0), 600, 0
    for _ in range(trials):
        one = [1.2 * exp(rng.expovariate(1)) for _ in range(8)]
        found = unpaired_interval(one, [exp(rng.expovariate(1)) for _ in range(6)])
        assert found is not None
        hits += found.low <= 1.2 <= found.high
    assert 0.935 < hits / trials < 0.99


@pytest.mark.parametrize(("one", "other"), [([], [1.0]), ([1.0], [])])
def test_without_values_on_a_side_there_is_none(one: list[float], other: list[float]) -> None:
    assert unpaired_interval(one, other) is None
    with pytest.raises(ValueError, match="at least one on both sides"):
        shift_interval(one, other)


def test_values_must_be_finite() -> None:
    with pytest.raises(ValueError, match="every one must be finite"):
        shift_interval([1.0, float("nan")], [1.0])
