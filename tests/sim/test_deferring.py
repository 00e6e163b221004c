"""What `deferral=auto` chooses on simulated steps, against the paper's choices."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ktbench.sim.calibration import read_calibration
from ktbench.sim.executor import busy_share
from ktbench.sim.simulation import settled_deferral, step_graph, step_seconds, with_deferral
from ktbench.spec.engine import choose_deferral, deferral_candidates
from ktbench.spec.run_spec import ModelSpec, RunSpec
from tests.sim.real import real_cell, real_machine, real_model

COST = read_calibration("ktransformers")
V3 = real_model("deepseek_v3", num_hidden_layers=8)
QWEN2 = real_model("qwen2_57b_a14b", num_hidden_layers=6)


def auto(model: str | ModelSpec, machine: str = "paper_a100", precision: str = "bf16") -> RunSpec:
    return real_cell(model, machine=real_machine(machine), precision=precision, deferral="auto")


@pytest.mark.parametrize("model", [V3, QWEN2])
@pytest.mark.parametrize(("machine", "precision"), [("paper_a100", "bf16"), ("paper_4080", "int8")])
def test_the_number_is_the_rules_for_the_hosts_busy_shares(model: ModelSpec, machine: str, precision: str) -> None:
    spec = auto(model, machine, precision)
    graphs = [step_graph(with_deferral(spec, n), COST) for n in deferral_candidates(model.shape.top_k)]
    chosen = settled_deferral(spec, COST)
    assert chosen == choose_deferral([busy_share(graph.tasks, "host") for graph in graphs])
    assert step_graph(spec, COST).tasks == graphs[chosen].tasks


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
    assert abs(settled_deferral(auto(model, machine, precision), COST) - published) <= 2


@pytest.mark.parametrize("top_k", [1, 2])
def test_two_experts_stay_immediate(top_k: int) -> None:
    model = real_model("qwen3_30b_a3b", num_hidden_layers=3, num_experts_per_tok=top_k)
    assert settled_deferral(auto(model), COST) == 0


def test_nothing_is_deferred_where_the_device_takes_no_time() -> None:
    quick = real_machine(gpu_gb_per_s=1e9, gpu_tflops=1e9, gpu_ghz=1e9)
    none = {"launch_us": 0.0, "kernel_us": 0.0, "sync_ms": 0.0}
    assert settled_deferral(replace(auto(V3), machine=quick), COST.changed(none)) == 0


def test_prefill_has_nothing_to_choose() -> None:
    assert settled_deferral(real_cell(V3, phase="prefill", deferral="auto"), COST) == 0


def test_a_number_is_kept() -> None:
    two = with_deferral(auto(V3), 2)
    assert settled_deferral(two, COST) == two.engine.deferral == 2
    assert step_seconds(two, COST) < step_seconds(with_deferral(two, 0), COST)
