from __future__ import annotations

import pytest

from ktbench.results.speedups import paired_interval, paired_ratios


def test_ratios_are_formed_inside_rounds_that_both_have() -> None:
    assert paired_ratios({0: 6.0, 1: 8.0, 3: 9.0}, {3: 3.0, 0: 2.0, 2: 1.0}) == {0: 3.0, 3: 3.0}


def test_drift_common_to_a_round_falls_out() -> None:
    drift = {n: 1.0 + n for n in range(6)}
    interval = paired_interval({n: 3 * x for n, x in drift.items()}, {n: 2 * x for n, x in drift.items()})
    assert interval is not None
    assert (interval.low, interval.high) == (1.5, 1.5)


@pytest.mark.parametrize("cell", [{}, {1: 2.0}])
def test_without_a_common_round_there_is_none(cell: dict[int, float]) -> None:
    assert paired_interval({0: 1.0}, cell) is None
