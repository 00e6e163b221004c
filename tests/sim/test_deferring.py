"""What `deferral=auto` chooses against trying every number, and against the paper's choices."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ktbench.sim.calibration import read_calibration
from ktbench.sim.deferral import LEAST_ON_TIME, with_deferral
from ktbench.sim.deferring import choose
from ktbench.sim.executor import play
from ktbench.sim.steps import step_graph, step_seconds
from ktbench.spec.run_spec import ModelSpec, RunSpec
from tests.sim.real import real_cell, real_machine, real_model

COST = read_calibration("ktransformers")
V3 = real_model("deepseek_v3", num_hidden_layers=8)
QWEN2 = real_model("qwen2_57b_a14b", num_hidden_layers=6)


def auto(model: str | ModelSpec, machine: str = "paper_a100", precision: str = "bf16") -> RunSpec:
    return real_cell(model, machine=real_machine(machine), precision=precision, deferral="auto")


@pytest.mark.parametrize("model", [V3, QWEN2])
@pytest.mark.parametrize(("machine", "precision"), [("paper_a100", "bf16"), ("paper_4080", "int8")])
def test_the_smallest_number_is_chosen_that_is_as_fast_as_any(model: ModelSpec, machine: str, precision: str) -> None:
    spec = auto(model, machine, precision)
    chosen = choose(spec, COST)
    tried = {
        count: play(step_graph(replace(spec, engine=replace(spec.engine, deferral=count)), COST).tasks).total_s
        for count in range(spec.model.shape.top_k - LEAST_ON_TIME + 1)
    }
    assert tried[chosen] <= min(tried.values()) * 1.005
    assert all(tried[count] > min(tried.values()) * 1.005 for count in range(chosen))


@pytest.mark.parametrize(
    ("model", "machine", "precision", "published"),
    [
        ("deepseek_v3", "paper_a100", "bf16", 3),
        ("deepseek_v3", "paper_4080", "int4_g128", 6),
        ("deepseek_v2", "paper_a100", "bf16", 4),
        ("deepseek_v2", "paper_4080", "int8", 4),
        ("qwen2_57b_a14b", "paper_a100", "bf16", 2),
        ("qwen2_57b_a14b", "paper_4080", "int8", 4),
    ],
)
def test_the_papers_choices_are_met_within_two(model: str, machine: str, precision: str, published: int) -> None:
    """KTransformers, section 6.2."""
    assert abs(choose(auto(model, machine, precision), COST) - published) <= 2


@pytest.mark.parametrize("top_k", [1, 2])
def test_two_experts_stay_on_time(top_k: int) -> None:
    assert choose(auto(real_model("qwen3_30b_a3b", num_hidden_layers=3, num_experts_per_tok=top_k)), COST) == 0


def test_nothing_is_deferred_where_the_device_takes_no_time() -> None:
    quick = real_machine(gpu_gb_per_s=1e9, gpu_tflops=1e9, gpu_ghz=1e9)
    none = {"launch_us": 0.0, "kernel_us": 0.0, "sync_ms": 0.0}
    assert choose(replace(auto(V3), machine=quick), COST.changed(none)) == 0


def test_prefill_has_nothing_to_choose() -> None:
    assert choose(real_cell(V3, phase="prefill", deferral="auto"), COST) == 0


def test_a_step_is_that_of_the_number_asked_for() -> None:
    spec = auto(V3)
    asked = with_deferral(spec, 2)
    assert asked.engine.deferral == 2 and spec.engine.deferral == "auto"
    assert (
        step_seconds(asked, COST)
        == play(step_graph(asked, COST).tasks).total_s
        < step_seconds(with_deferral(spec, 0), COST)
    )
