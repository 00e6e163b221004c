"""How many tokens each expert gets, as the workload routes them and under skewed popularity."""

from __future__ import annotations

from math import exp, factorial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ktbench.sim.calibration import read_calibration
from ktbench.sim.routing import SAMPLES, _poisson, loads_of, popularity_of, skewed_loads
from tests.sim.real import real_cell

COST = read_calibration("ktransformers")
QWEN3 = "qwen3_30b_a3b"
SKEWS = {
    "deepseek_v3": "skew_deepseek_v3",
    "kimi_k2": "skew_deepseek_v3",
    "deepseek_v2": "skew_deepseek_v2",
    "deepseek_v2_lite": "skew_deepseek_v2",
    "qwen2_57b_a14b": "skew_qwen2_moe",
    QWEN3: "skew_other",
    "gpt_oss_20b": "skew_other",
}


@pytest.mark.parametrize(("model", "constant"), SKEWS.items())
def test_each_family_is_skewed_by_its_own_constant(model: str, constant: str) -> None:
    spec, top_k = real_cell(model), 4
    was = loads_of(spec, COST, 512, top_k)
    for name in (name for name in COST.constants if name.startswith("skew_") and name not in OF_ALL):
        even = loads_of(spec, COST.changed({name: 0.0}), 512, top_k)
        assert (even.std() < was.std()) == (name == constant)


OF_ALL = ("skew_decay", "skew_groups")


def test_base_keeps_the_gate_that_balances() -> None:
    base = real_cell(avx512=False, dynamic=False, numa=False, cuda_graph=False)
    assert loads_of(base, COST, 2048, 8).std() < loads_of(real_cell(), COST, 2048, 8).std()
    even = COST.changed({"skew_deepseek_v3_original": 0.0, "skew_groups": 0.0})
    assert loads_of(base, even, 2048, 8).var() == pytest.approx(2048 * 8 / 256, rel=0.1)


@pytest.mark.parametrize(("model", "moved"), [("deepseek_v3", True), ("deepseek_v2", False), (QWEN3, False)])
def test_groups_of_experts_are_deepseek_v3s(model: str, moved: bool) -> None:
    spec = real_cell(model)
    apart = loads_of(spec, COST.changed({"skew_groups": 0.0}), 512, 4)
    assert (apart != loads_of(spec, COST, 512, 4)).any() == moved


def test_skew_falls_with_tokens_from_where_it_was_measured() -> None:
    spec = real_cell("qwen2_57b_a14b")
    falling, constant = COST.changed({"skew_decay": 0.5}), COST.changed({"skew_decay": 0.0})
    assert (loads_of(spec, falling, 32, 8) == loads_of(spec, constant, 32, 8)).all()
    assert loads_of(spec, falling, 8192, 8).std() < 0.3 * loads_of(spec, constant, 8192, 8).std()


def test_selections_are_as_many_as_tokens_make() -> None:
    loads = loads_of(real_cell(), COST, 4096, 8)
    assert loads.shape == (SAMPLES, 256)
    assert loads.sum(axis=1).mean() == pytest.approx(4096 * 8, rel=0.01)


def test_balanced_loads_differ_by_one_at_most() -> None:
    loads = loads_of(real_cell(QWEN3, work={"routing": "balanced"}), COST, 100, 8)
    assert (loads.sum(axis=1) == 800).all()
    assert set(np.unique(loads)) == {6, 7}


def test_active_experts_get_all() -> None:
    spec = real_cell(QWEN3, phase="layer", work={"batch": 64, "active_experts": 16})
    loads = loads_of(spec, COST, 64, 8)
    assert ((loads > 0).sum(axis=1) == 16).all()
    assert (loads[loads > 0] == 64 * 8 // 16).all()


def test_concentrated_loads_are_all_tokens_on_as_many_experts_as_one_selects() -> None:
    loads = loads_of(real_cell(QWEN3, work={"routing": "concentrated"}), COST, 50, 8)
    assert (np.sort(loads, axis=1)[:, -8:] == 50).all()
    assert (loads.sum(axis=1) == 400).all()


def test_zipf_lies_between_even_and_concentrated() -> None:
    even, zipf, all_to_few = (
        loads_of(real_cell(QWEN3, work={"routing": routing}), COST, 500, 8).std()
        for routing in ("balanced", "zipf", "concentrated")
    )
    assert even < zipf < all_to_few


def trace_of(folder: Path, experts: int, top_k: int) -> tuple[Path, np.ndarray]:
    """Experts of 24 tokens in one layer."""
    ids = np.stack([np.random.default_rng(token).permutation(experts)[:top_k] for token in range(24)])
    np.savez(folder / "trace.npz", decode_experts=ids[:, None, :])
    return folder / "trace.npz", ids


def test_recorded_loads_are_those_of_the_trace(tmp_path: Path) -> None:
    file, ids = trace_of(tmp_path, experts=128, top_k=8)
    spec = real_cell(QWEN3, phase="layer", work={"routing": "recorded", "trace": str(file)})
    counted = np.bincount(ids.ravel(), minlength=128)
    assert (loads_of(spec, COST, 24, 8) == counted).all()


def test_a_trace_of_another_model_is_refused(tmp_path: Path) -> None:
    file, _ = trace_of(tmp_path, experts=64, top_k=4)
    spec = real_cell(QWEN3, phase="layer", work={"routing": "recorded", "trace": str(file)})
    with pytest.raises(ValueError, match="the model has 128 and 8 per token"):
        loads_of(spec, COST, 24, 8)


@pytest.mark.parametrize("model", ["deepseek_v3", "qwen2_57b_a14b"])
def test_popularity_is_shares_of_all_selections(model: str) -> None:
    shares = popularity_of(real_cell(model), COST)
    assert shares.sum(axis=1) == pytest.approx(1.0)
    assert shares.min() >= 0
    skewed = popularity_of(real_cell(model), COST.changed({SKEWS[model]: 2.5}))
    assert np.sort(skewed)[:, -8:].sum() > np.sort(shares)[:, -8:].sum()


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


@pytest.mark.parametrize("mean", [0.0, 0.02, 0.7, 3.0, 40.0])
def test_quantiles_are_the_least_counts_that_reach_them(mean: float) -> None:
    """By sums of the probabilities mean^k exp(-mean) / k!."""
    quantiles = np.random.default_rng(3).random(200)
    reached = np.cumsum([exp(-mean) * mean**k / factorial(k) for k in range(120)])
    wanted = [int(np.argmax(reached >= quantile)) for quantile in quantiles]
    assert _poisson(quantiles, np.full(200, mean)).tolist() == wanted


def test_a_quantile_of_zero_is_no_negative_count() -> None:
    assert _poisson(np.zeros(2), np.array([0.0, 3.0])).tolist() == [0, 0]
