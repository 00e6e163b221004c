"""Loads of experts as the workload routes them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ktbench.sim.calibration import read_calibration
from ktbench.sim.routing import SAMPLES, loads_of, popularity_of
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
