"""The rule of deferral=auto."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ktbench.spec.engine import MIN_IMMEDIATE_EXPERTS, choose_deferral, deferral_candidates

SHARES = st.lists(st.floats(0.01, 1), min_size=1, max_size=9)


@given(st.integers(1, 64))
def test_enough_experts_stay_immediate(top_k: int) -> None:
    candidates = list(deferral_candidates(top_k))
    assert candidates[0] == 0
    assert all(top_k - count >= min(top_k, MIN_IMMEDIATE_EXPERTS) for count in candidates)


@given(SHARES)
def test_the_smallest_number_that_keeps_the_host_as_busy_as_any(busy: list[float]) -> None:
    chosen = choose_deferral(busy)
    assert busy[chosen] >= 0.97 * max(busy)
    assert all(share < 0.97 * max(busy) for share in busy[:chosen])


@given(SHARES, st.floats(0.1, 1))
def test_only_how_they_compare_matters(busy: list[float], factor: float) -> None:
    halved = [share / 2 for share in busy]
    assert choose_deferral(halved) == choose_deferral(busy)
    assert choose_deferral([*busy, min(busy) * factor * 0.5]) == choose_deferral(busy)


@pytest.mark.parametrize(
    ("busy", "chosen"),
    [
        ([0.5], 0),
        ([0.5, 0.5, 0.5], 0),
        ([0.5, 0.7, 0.9, 0.9], 2),
        ([0.5, 0.88, 0.9], 1),
        ([0.9, 0.5], 0),
        ([0.0, 0.0], 0),
    ],
)
def test_choices_by_hand(busy: list[float], chosen: int) -> None:
    assert choose_deferral(busy) == chosen


def test_nothing_to_choose_from_is_refused() -> None:
    with pytest.raises(ValueError, match="no busy shares"):
        choose_deferral([])
