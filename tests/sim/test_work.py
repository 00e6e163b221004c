"""Work of a step with a GPU against the paper's bytes, and counters against the features that were asked for."""

from __future__ import annotations

from typing import Any

import pytest

from ktbench.sim.simulation import step_counters, step_work
from ktbench.spec.engine import PlacementSpec
from ktbench.spec.features import FEATURES
from ktbench.spec.record import collect, dishonest
from ktbench.spec.run_spec import ModelSpec
from tests.sim.real import real_cell
from tests.sim.step_cells import COST, EXPERT, OFF, QWEN3, V3


@pytest.mark.parametrize(
    ("model", "params_b", "gb"),
    [("deepseek_v3", 20.43, 40.87), ("deepseek_v2", 8.35, 16.70), ("qwen2_57b_a14b", 6.17, 12.33)],
)
def test_a_token_activates_the_bytes_of_the_paper(model: str, params_b: float, gb: float) -> None:
    """KTransformers, Table 1: routed parameters of one token."""
    work = step_work(real_cell(model), COST)
    assert work.weight_bytes / 1e9 == pytest.approx(gb, abs=0.01)
    assert work.flops / 2e9 == pytest.approx(params_b, abs=0.01)
    assert work.tokens == 1


@pytest.mark.parametrize(("precision", "share"), [("int8", 0.5), ("int4_g128", 0.25)])
def test_fewer_bits_are_fewer_bytes_and_as_much_arithmetic(precision: str, share: float) -> None:
    was, now = step_work(real_cell(V3), COST), step_work(real_cell(V3, precision=precision), COST)
    assert now.weight_bytes == pytest.approx(share * was.weight_bytes, rel=0.003)
    assert now.flops == was.flops


def test_a_prefill_reads_each_active_expert_once_and_multiplies_every_selection() -> None:
    work = step_work(real_cell(V3, phase="prefill", work={"prompt": 4096}), COST)
    assert work.flops == pytest.approx(3 * 4096 * 8 * 2 * EXPERT, rel=0.02)
    assert 0.7 * 3 * 256 * 2 * EXPERT < work.weight_bytes <= 3 * 256 * 2 * EXPERT
    assert work.tokens == 4096


def test_a_layer_alone_is_one_layer() -> None:
    work = step_work(real_cell(QWEN3, phase="layer", work={"batch": 64}), COST)
    assert work.weight_bytes == 128 * 3 * 2048 * 768 * 2
    assert work.flops == 64 * 8 * 2 * 3 * 2048 * 768


@pytest.mark.parametrize("engine", [{}, {"cuda_graph": False}, {"deferral": 3}, {"amx": True}, OFF])
def test_features_change_nothing_about_the_work_of_a_token(engine: dict[str, Any]) -> None:
    assert step_work(real_cell(V3, **engine), COST) == step_work(real_cell(V3), COST)


@pytest.mark.parametrize("batch", [1, 4])
def test_skipping_leaves_its_share_out(batch: int) -> None:
    work = {"batch": batch, "routing": "balanced"}
    was, now = (step_work(real_cell(V3, skipping=count, work=work), COST) for count in (0, 2))
    assert (now.weight_bytes, now.flops) == (0.75 * was.weight_bytes, 0.75 * was.flops)


# Each feature where it acts: the rungs of the breakdown, and one with both kernels at work.
HONEST: tuple[tuple[str, dict[str, Any], dict[str, Any]], ...] = (
    ("decode", OFF, {}),
    ("prefill", OFF, {}),
    ("decode", OFF | {"avx512": True}, {}),
    ("prefill", OFF | {"avx512": True}, {}),
    ("decode", OFF | {"amx": True}, {}),
    ("prefill", OFF | {"amx": True, "dynamic": True}, {}),
    ("prefill", OFF | {"amx": True, "dynamic": True, "numa": True}, {}),
    ("prefill", OFF | {"avx512": True, "amx": True}, {"prompt": 64}),
    ("layer", OFF | {"avx512": True, "dynamic": True}, {"batch": 64}),
    ("layer", OFF | {"amx": True, "numa": True}, {"batch": 64}),
    ("decode", OFF | {"avx512": True, "dynamic": True, "numa": True, "cuda_graph": True}, {}),
    ("decode", OFF | {"avx512": True, "cuda_graph": True, "deferral": 3}, {}),
    ("decode", OFF | {"avx512": True, "cuda_graph": True, "deferral": 3}, {"batch": 4}),
    ("decode", OFF | {"avx512": True, "skipping": 3}, {}),
    ("prefill", OFF | {"amx": True, "deferral": 2, "defer_prefill": True}, {}),
    ("prefill", OFF | {"amx": True, "skipping": 2, "defer_prefill": True}, {}),
    ("prefill", OFF | {"amx": True, "cuda_graph": True}, {"chunk": 200}),
    ("prefill", OFF | {"avx512": True, "device_prefill_tokens": 200}, {"chunk": 200}),
)


@pytest.mark.parametrize("model", [V3, QWEN3])
@pytest.mark.parametrize(("phase", "engine", "work"), HONEST)
def test_counters_see_what_was_asked_and_nothing_else(
    model: ModelSpec, phase: str, engine: dict[str, Any], work: dict[str, Any]
) -> None:
    base = {"prompt": 1, "routing": "balanced"} if phase == "layer" else {"prompt": 512 if phase == "prefill" else 32}
    spec = real_cell(model, phase=phase, work={"steps": 1} | base | work, **engine)
    counted = step_counters(spec, COST)
    assert set(counted) == {feature.counter for feature in FEATURES if not feature.serving}
    assert dishonest(collect(spec.engine.features, counted)) == ""


def test_a_deferral_that_prefill_does_not_do_is_not_counted() -> None:
    spec = real_cell(V3, phase="prefill", deferral=2)
    assert step_counters(spec, COST)["deferred_experts"] == 0
    assert "deferral" in dishonest(collect(spec.engine.features, step_counters(spec, COST)))


def test_counters_of_a_token_are_those_worked_out_by_hand() -> None:
    """3 MoE layers; of an expert 2 x 16 tasks of gate and up, and 56 of down in each of 2 domains, 128 columns each."""
    counted = step_counters(real_cell(V3, deferral=3), COST)
    assert counted == {
        "avx2_calls": 0, "avx512_calls": 3 * 8, "amx_tiles": 0, "tasks_dynamic": 3 * 8 * (2 * 16 + 2 * 56),
        "local_bytes": 3 * 8 * 2 * EXPERT, "graph_replays": 1, "streamed_bytes": 0, "flag_answers": 0,
        "linear_calls": 0, "deferred_experts": 3 * 2, "skipped_experts": 0,
    }  # fmt: skip


def test_tiles_are_16_rows_of_a_kilobyte_of_weights() -> None:
    spec = real_cell(QWEN3, phase="layer", work={"batch": 320}, **(OFF | {"amx": True}))
    assert step_counters(spec, COST)["amx_tiles"] == 128 * 2 * (3 * 2048 * 768 * 2) // 1024  # 20 rows each


def test_the_hybrid_takes_amx_from_five_tokens() -> None:
    few, many = (
        step_counters(real_cell(QWEN3, phase="layer", work={"batch": batch}, avx512=True, amx=True), COST)
        for batch in (64, 80)  # 4 and 5 tokens per expert
    )
    assert (few["avx512_calls"], few["amx_tiles"]) == (128, 0)
    assert many["avx512_calls"] == 0 < many["amx_tiles"]


def test_every_token_of_a_batch_defers_and_skips_its_own() -> None:
    assert step_counters(real_cell(V3, deferral=3, work={"batch": 5}), COST)["deferred_experts"] == 3 * 5 * 2
    assert step_counters(real_cell(V3, skipping=3, work={"batch": 5}), COST)["skipped_experts"] == 3 * 5 * 3


def test_skipping_in_prefill_leaves_its_share_out_too() -> None:
    skipping: dict[str, Any] = {"skipping": 4, "defer_prefill": True}
    was, now = (step_work(real_cell(V3, phase="prefill", **engine), COST) for engine in ({}, skipping))
    assert now.flops == pytest.approx(0.5 * was.flops, rel=0.05)


def test_a_batch_may_skip_all_experts() -> None:
    spec = real_cell(V3, skipping=8, work={"batch": 2, "routing": "balanced"})
    assert step_work(spec, COST).weight_bytes == 0


def test_experts_of_the_device_are_no_work_of_the_host() -> None:
    placed = real_cell(QWEN3, placement=PlacementSpec(policy="uniform", ratio=0.5))
    was = step_work(real_cell(QWEN3), COST)
    assert step_work(placed, COST).weight_bytes == pytest.approx(was.weight_bytes / 2)
