from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ktbench.results.intervals import CONFIDENCE, coverage, median_interval, order_ranks

NUMBERS = st.lists(st.floats(min_value=-1e9, max_value=1e9), min_size=1, max_size=40)


@pytest.mark.parametrize(("n", "ranks"), [(6, (1, 6)), (12, (3, 10)), (20, (6, 15))])
def test_ranks_of_the_textbook(n: int, ranks: tuple[int, int]) -> None:
    """David and Nagaraja, Order Statistics, table of section 7.1."""
    assert order_ranks(n) == ranks


@pytest.mark.parametrize("n", range(1, 13))
def test_coverage_is_that_of_all_coin_throws(n: int) -> None:
    """Each value lies below the median with chance 1/2: count the throws that leave it inside the interval."""
    low, high = order_ranks(n)
    below = [sum(throw) for throw in product((0, 1), repeat=n)]
    assert coverage(n, low) == sum(low <= count < high for count in below) / 2**n


@pytest.mark.parametrize("n", range(6, 60))
def test_the_interval_is_the_narrowest_that_covers(n: int) -> None:
    low, high = order_ranks(n)
    assert coverage(n, low) >= CONFIDENCE
    assert low + high == n + 1
    assert low == n // 2 or coverage(n, low + 1) < CONFIDENCE


@pytest.mark.parametrize(("n", "true"), [(1, 0.0), (2, 0.5), (5, 0.9375)])
def test_too_few_values_span_them_all_and_say_so(n: int, true: float) -> None:
    interval = median_interval([float(value) for value in range(n)])
    assert (interval.low, interval.high, interval.coverage) == (0, n - 1, true)
    assert not interval.sound
    assert not interval.closed(goal=1e9)


@given(NUMBERS)
def test_ends_are_values_around_the_median(values: list[float]) -> None:
    interval = median_interval(values)
    assert interval.mid == pytest.approx(float(np.median(values)), rel=1e-12, abs=1e-12)
    assert interval.low in values
    assert interval.high in values
    assert interval.low <= interval.mid <= interval.high


def test_an_outlier_moves_nothing() -> None:
    values = [1.0] * 11
    assert median_interval([*values, 1000.0]).high == 1.0


def test_half_width_and_goal() -> None:
    interval = median_interval([0.96, 0.98, 1.0, 1.0, 1.02, 1.04])
    assert interval.half_width == pytest.approx(0.04)
    assert interval.closed(0.05)
    assert not interval.closed(0.03)


def test_a_rate_turns_the_ends_round() -> None:
    rate = median_interval([1.0, 2.0, 4.0]).per(8)
    assert (rate.low, rate.mid, rate.high) == (2, 4, 8)


@pytest.mark.parametrize("values", [[], [1.0, float("nan")], [float("inf")]])
def test_no_values_or_wrong_ones_are_refused(values: list[float]) -> None:
    with pytest.raises(ValueError, match="values"):
        median_interval(values)
