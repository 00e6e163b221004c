"""Skewed loads against the moments of the distributions that they are drawn from."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ktbench.sim.routing import skewed_loads

EXPERTS = 64


def drawn(**changes: Any) -> NDArray[np.int64]:
    return skewed_loads(**({"samples": 400, "experts": EXPERTS, "picks": 6400, "variation": 0.8, "seed": 1} | changes))


def excess(loads: NDArray[np.int64]) -> float:
    """Squared coefficient of variation of loads, Poisson noise taken off."""
    mean = loads.mean()
    return float(loads.var() / mean**2 - 1 / mean)


@pytest.mark.parametrize("picks", [8, 256, 4096])
@pytest.mark.parametrize("variation", [0.0, 0.6, 1.8])
def test_as_many_selections_are_made_as_asked_on_average(picks: int, variation: float) -> None:
    totals = drawn(picks=picks, variation=variation).sum(axis=1)
    assert totals.mean() == pytest.approx(picks, abs=5 * np.sqrt(picks / len(totals)))


@pytest.mark.parametrize("variation", [0.0, 0.3, 0.8, 1.8])
def test_popularity_varies_as_asked(variation: float) -> None:
    """Gamma weights over their sum are Dirichlet distributed, whose shares vary by (E - 1) / (E / v² + 1)."""
    wanted = (EXPERTS - 1) / (EXPERTS / variation**2 + 1) if variation else 0.0
    assert excess(drawn(picks=640_000, variation=variation)) == pytest.approx(wanted, rel=0.06, abs=1e-4)


def test_without_variation_loads_are_poisson_over_even_shares() -> None:
    loads = drawn(picks=EXPERTS * 9, variation=0.0)
    assert loads.mean() == pytest.approx(9, rel=0.02)
    assert loads.var() == pytest.approx(9, rel=0.05)


def test_experts_of_a_group_are_hot_together() -> None:
    alone = drawn(picks=64_000, variation=0.3)
    grouped = drawn(picks=64_000, variation=0.3, groups=8, group_variation=0.6)
    assert abs(correlation(alone)) < 0.05
    assert correlation(grouped) > 0.4
    wide = drawn(picks=64_000, variation=0.0, groups=8, group_variation=0.6).reshape(-1, 8, EXPERTS // 8)
    assert wide.std(axis=2).mean() < 0.2 * wide.mean(axis=2).std(axis=1).mean()


def correlation(loads: NDArray[np.int64]) -> float:
    """Of neighbours within a group of eight."""
    pairs = loads.reshape(-1, 8, EXPERTS // 8)
    return float(np.corrcoef(pairs[:, :, :-1].ravel(), pairs[:, :, 1:].ravel())[0, 1])


@settings(deadline=None, max_examples=30)
@given(
    st.integers(1, 40), st.integers(1, 8), st.integers(0, 5000), st.just(0.0) | st.floats(0.01, 2.5), st.integers(0, 9)
)
def test_any_numbers_of_experts_and_groups_can_be_had(
    experts: int, groups: int, picks: int, variation: float, seed: int
) -> None:
    loads = drawn(
        samples=3, experts=experts, groups=groups, group_variation=0.35, picks=picks, variation=variation, seed=seed
    )
    assert loads.shape == (3, experts)
    assert loads.min() >= 0


@pytest.mark.parametrize("changes", [{"variation": 0.808}, {"picks": 6464}, {"group_variation": 0.3535}])
def test_a_little_more_of_an_argument_moves_few_selections(changes: dict[str, float]) -> None:
    asked = {"groups": 8, "group_variation": 0.35}
    before, after = drawn(**asked), drawn(**(asked | changes))
    assert np.abs(after - before).sum() < 0.03 * before.sum()


def test_a_seed_draws_the_same_again_and_another_one_does_not() -> None:
    assert (drawn() == drawn()).all()
    assert (drawn() != drawn(seed=2)).mean() > 0.5
