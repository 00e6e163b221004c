"""A cell simulated: what is refused, what is noted, what always holds, and what `deferral=auto` chooses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import pytest

from ktbench.sim.calibration import read_calibration
from ktbench.sim.graph import busy_share, execute
from ktbench.sim.sensitivity import sensitivity
from ktbench.sim.simulation import (
    Simulation,
    resolved_deferral,
    simulate,
    step_graph,
    step_seconds,
    with_all_features,
    with_deferral,
)
from ktbench.spec.engine import Device, PlacementSpec, choose_deferral, deferral_candidates
from ktbench.spec.machine import MachineSpec
from ktbench.spec.run_spec import ModelSpec, RunSpec
from ktbench.spec.wire import to_plain
from tests.sim.real import real_cell, real_machine, real_model
from tests.sim.step_cells import COST, OFF, QWEN3, V3, replace_engine
from tests.sim.testbed import cell_on, testbed

HALF = PlacementSpec(policy="uniform", ratio=0.5)
CELLS: tuple[RunSpec, ...] = (
    *(
        real_cell(model, phase=phase, **engine)
        for model in (V3, QWEN3)
        for phase in ("decode", "prefill")
        for engine in ({}, OFF, {"cuda_graph": True}, {"placement": HALF})
    ),
    real_cell(V3, deferral=3),
    real_cell(V3, deferral="auto"),
    real_cell(V3, skipping=8),
    real_cell(QWEN3, placement=PlacementSpec(policy="dynamic", ratio=1.0)),
    real_cell(QWEN3, phase="layer", work={"batch": 64}),
    cell_on(testbed(gpu=None, calibration="ktbench")),
)


@pytest.mark.parametrize("spec", CELLS, ids=lambda spec: f"{spec.model.name} {spec.workload.phase} {spec.label}")
def test_an_answer_is_whole(spec: RunSpec) -> None:
    found = simulate(spec)
    assert found.step_s > 0
    assert found.timeline.provenance == "simulated"
    assert found.timeline.step_s == found.step_s == max(span.end_s for span in found.timeline.spans)
    assert all(0 < share <= 1 + 1e-9 for share in found.shares.values())
    assert set(found.shares) == set(found.timeline.resources)
    assert all(one.begin_s <= other.begin_s for one, other in pairwise(found.timeline.spans))
    assert all(count >= 0 for count in found.counters.values())
    assert found.bottleneck
    assert to_plain(found)["step_s"] == found.step_s
    if spec.engine.placement.policy == "host":
        assert found.work.weight_bytes / found.step_s <= found.roof.read_bytes_per_s


@pytest.mark.parametrize(("precision", "bits"), [("bf16", 16), ("int8", 8), ("int4_g32", 4)])
@pytest.mark.parametrize(("preset", "label"), [("core_14900kf_4090", "+a+d+c"), ("ryzen_5950x", "+a+d+l")])
def test_a_machine_without_avx512_runs_the_avx2_kernel(preset: str, label: str, precision: str, bits: int) -> None:
    machine = real_machine(preset)
    plain = replace_engine(real_cell(QWEN3, machine=machine, precision=precision, **OFF), device=_device(machine))
    fused = replace_engine(plain, avx2=True)
    every = with_all_features(plain)
    found = [simulate(spec) for spec in (fused, replace_engine(fused, dynamic=True), every)]
    assert every.label == label
    steps_s = [one.step_s for one in found]
    assert steps_s == sorted(steps_s, reverse=True)
    read_s = 4 * 8 * 3 * 2048 * 768 * bits / 8 / (1e9 * machine.read_gb_per_s)
    assert steps_s[-1] > read_s
    assert all(one.counters["avx2_calls"] and not one.counters["avx512_calls"] for one in found)
    if precision == "bf16":
        assert simulate(plain).step_s > steps_s[0]


def _device(machine: MachineSpec) -> Device:
    return "cuda" if machine.gpu else "cpu"


def test_work_counters_and_shares_are_those_of_the_step() -> None:
    found = simulate(real_cell(V3))
    assert found.work.weight_bytes == 3 * 8 * 2 * 3 * 7168 * 2048
    assert found.counters["graph_replays"] == 1
    assert found.shares["host"] == found.timeline.busy_s("host") / found.step_s
    assert simulate(real_cell("deepseek_v3")).bottleneck == "the host's experts"


@pytest.mark.parametrize("of", [simulate, sensitivity, with_all_features, partial(step_graph, cost=COST)])
def test_a_cell_without_a_machine_is_refused(of: Callable[[RunSpec], object]) -> None:
    with pytest.raises(ValueError, match="machine: names no machine to simulate on"):
        of(replace(real_cell(V3), machine=None))


def test_the_lean_device_role_is_refused_beside_a_gpu_with_the_reason() -> None:
    with pytest.raises(ValueError, match=r"\+l: .* of CPU cores; with a GPU linear layers are PyTorch's"):
        simulate(real_cell(V3, packed_dense=True))


def test_an_unknown_calibration_is_refused_with_those_allowed() -> None:
    with pytest.raises(ValueError, match=r"machine.calibration=mine: unknown; allowed are .*ktransformers"):
        simulate(real_cell(V3, machine=real_machine(calibration="mine")))


@pytest.mark.parametrize("model", [V3, QWEN3])
def test_deferral_auto_is_settled_and_noted(model: ModelSpec) -> None:
    found = simulate(real_cell(model, deferral="auto"))
    (note,) = found.notes
    chosen = int(note.removeprefix("deferral=auto chose "))
    resolved = simulate(real_cell(model, deferral=chosen))
    assert (found.step_s, found.counters) == (resolved.step_s, resolved.counters)
    assert resolved.notes == ()


def test_a_graph_of_a_whole_prompt_is_noted_to_change_nothing() -> None:
    with_c, without = (simulate(real_cell(V3, phase="prefill", cuda_graph=c)) for c in (True, False))
    assert with_c.step_s == without.step_s
    (note,) = with_c.notes
    assert "+c changes nothing" in note and "workload.chunk" in note
    assert without.notes == ()


def test_a_graph_of_chunks_is_simulated() -> None:
    work = {"prompt": 256, "chunk": 100}
    with_c, without = (simulate(real_cell(V3, phase="prefill", work=work, cuda_graph=c)) for c in (True, False))
    assert with_c.notes == without.notes == ()
    assert (with_c.counters["graph_replays"], without.counters["graph_replays"]) == (2, 0)
    assert "launch" in without.shares and with_c.shares["launch"] < without.shares["launch"]
    assert with_c.work == without.work


def test_a_machine_without_a_gpu_goes_to_the_cores() -> None:
    spec = cell_on(testbed(gpu=None, calibration="ktbench"), packed_dense=True)
    execution = execute(step_graph(spec, read_calibration("ktbench")).tasks)
    found = simulate(spec)
    assert found.step_s == execution.total_s
    assert set(found.timeline.resources) <= {"host", "device"}


@pytest.mark.parametrize(
    ("engine", "precision", "isa", "dtype", "peak"),
    [
        ({}, "bf16", "avx512", "bf16", 2 * 9.22e12),
        ({}, "int4_g128", "avx512", "int8", 2 * 18.4e12),
        ({"avx512": False, "amx": True}, "bf16", "amx", "bf16", 2 * 73.7e12),
        ({"amx": True}, "int8", "amx", "int8", 2 * 147.5e12),
    ],
)
def test_roofs_are_those_of_all_domains(
    engine: dict[str, Any], precision: str, isa: str, dtype: str, peak: float
) -> None:
    roof = simulate(real_cell(QWEN3, precision=precision, **engine)).roof
    assert roof.read_bytes_per_s == 440e9
    assert (roof.peak_isa, roof.peak_dtype) == (isa, dtype)
    assert roof.peak_flops == pytest.approx(peak)


def spans(found: Simulation, kind: str) -> int:
    return sum(span.kind == kind for span in found.timeline.spans)


def test_spans_of_a_step_are_those_of_its_layers() -> None:
    found = simulate(real_cell(V3, deferral=2))
    assert (spans(found, "attention"), spans(found, "experts"), spans(found, "deferred")) == (6, 3, 2)
    assert {span.layer for span in found.timeline.spans} == {None, *range(6)}
    assert all(span.end_s > span.begin_s for span in found.timeline.spans)


def test_chunks_read_experts_anew() -> None:
    whole, chunked = (
        simulate(real_cell(V3, phase="prefill", work={"prompt": 512, "chunk": chunk})) for chunk in (None, 64)
    )
    assert chunked.work.tokens == whole.work.tokens == 512
    assert chunked.work.flops == pytest.approx(whole.work.flops, rel=0.02)
    assert chunked.work.weight_bytes > 2 * whole.work.weight_bytes
    assert chunked.step_s > whole.step_s


@pytest.mark.parametrize(("gpu", "calibration"), [(None, "ktransformers"), ("RTX 4080", "ktbench")])
def test_a_calibration_of_the_other_kind_of_machine_is_refused(gpu: str | None, calibration: str) -> None:
    with pytest.raises(ValueError, match=f"machine.calibration={calibration}: ktbench is for machines without a GPU"):
        simulate(cell_on(testbed(gpu=gpu, calibration=calibration)))


def test_amx_is_refused_on_a_machine_without_it() -> None:
    with pytest.raises(ValueError, match="AMX"):
        simulate(real_cell(V3, phase="prefill", machine=real_machine(amx_tflops=None, amx_int8_tops=None)))


QWEN2 = real_model("qwen2_57b_a14b", num_hidden_layers=6)
V3_OF_8 = real_model("deepseek_v3", num_hidden_layers=8)


def auto(model: str | ModelSpec, machine: str = "paper_a100", precision: str = "bf16") -> RunSpec:
    return real_cell(model, machine=real_machine(machine), precision=precision, deferral="auto")


@pytest.mark.parametrize("model", [V3_OF_8, QWEN2])
@pytest.mark.parametrize(("machine", "precision"), [("paper_a100", "bf16"), ("paper_4080", "int8")])
def test_the_number_is_the_rules_for_the_hosts_busy_shares(model: ModelSpec, machine: str, precision: str) -> None:
    spec = auto(model, machine, precision)
    graphs = [step_graph(with_deferral(spec, n), COST) for n in deferral_candidates(model.shape.top_k)]
    chosen = resolved_deferral(spec, COST)
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
    assert abs(resolved_deferral(auto(model, machine, precision), COST) - published) <= 2


@pytest.mark.parametrize("top_k", [1, 2])
def test_two_experts_stay_immediate(top_k: int) -> None:
    model = real_model("qwen3_30b_a3b", num_hidden_layers=3, num_experts_per_tok=top_k)
    assert resolved_deferral(auto(model), COST) == 0


def test_nothing_is_deferred_where_the_device_takes_no_time() -> None:
    quick = real_machine(gpu_gb_per_s=1e9, gpu_tflops=1e9, gpu_ghz=1e9)
    none = {"launch_us": 0.0, "kernel_us": 0.0, "sync_ms": 0.0}
    assert resolved_deferral(replace(auto(V3_OF_8), machine=quick), COST.changed(none)) == 0


def test_prefill_has_nothing_to_choose() -> None:
    assert resolved_deferral(real_cell(V3_OF_8, phase="prefill", deferral="auto"), COST) == 0


def test_a_number_is_kept() -> None:
    two = with_deferral(auto(V3_OF_8), 2)
    assert resolved_deferral(two, COST) == two.engine.deferral == 2
    assert step_seconds(two, COST) < step_seconds(with_deferral(two, 0), COST)
