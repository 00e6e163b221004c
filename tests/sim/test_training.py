"""A training step on a described machine: its order, its arithmetic by hand, what makes it longer, what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from ktbench.cli import main
from ktbench.resources import data_folder
from ktbench.results import read_published, read_run
from ktbench.results.rows import rows_of
from ktbench.run.feasibility import Machine, feasibility
from ktbench.sim.calibration import Calibration, read_calibration
from ktbench.sim.graph import Graph
from ktbench.sim.judging.measured import measured_cells
from ktbench.sim.records import simulated
from ktbench.sim.simulation import simulate, step_graph, step_seconds, step_work
from ktbench.spec.engine import EngineSpec, PlacementSpec
from ktbench.spec.machine import MachineSpec
from ktbench.spec.record import Cell, Environment, Outcome
from ktbench.spec.run_spec import ModelSpec, RunSpec, WorkloadSpec
from ktbench.spec.step.work import device_bytes, routed_bytes, trained_bytes
from ktbench.spec.wire import spec_id
from tests.sim.real import real_machine, real_model
from tests.sim.testbed import testbed

V3 = real_model("deepseek_v3", num_hidden_layers=5)  # of which 3 are dense
QWEN3 = real_model("qwen3_30b_a3b", num_hidden_layers=2)
CORES, GPU = testbed(gpu=None, domains=1, calibration="ktbench"), real_machine()
COST = {CORES.name: read_calibration("ktbench"), GPU.name: read_calibration("ktransformers")}
RECORDED = data_folder("reports") / "recorded" / "zen4_2_cores" / "sft_layer"


def cell(
    machine: MachineSpec = CORES,
    model: ModelSpec = QWEN3,
    *,
    work: dict[str, Any] | None = None,
    precision: str = "bf16",
    device_precision: str = "bf16",
    **engine: Any,
) -> RunSpec:
    """Two layers with LoRA on attention and experts, 256 tokens."""
    trained = {"prompt": 128, "steps": 2, "batch": 2, "adapters": "both", "lora_rank": 8, "recompute": True}
    arm = {"avx512": True, "dynamic": True, "device": "cpu" if machine.gpu is None else "cuda"}
    return RunSpec(
        model=model,
        workload=WorkloadSpec(phase="train", **(trained | (work or {}))),  # type: ignore[arg-type]
        engine=EngineSpec(**(arm | engine)),
        precision=precision,  # type: ignore[arg-type]
        device_precision=device_precision,  # type: ignore[arg-type]
        machine=machine,
    )


def graph_of(spec: RunSpec, cost: Calibration | None = None) -> Graph:
    assert spec.machine is not None
    return step_graph(spec, cost or COST[spec.machine.name])


def step_s(spec: RunSpec) -> float:
    assert spec.machine is not None
    return step_seconds(spec, COST[spec.machine.name])


def seconds_of(graph: Graph, name: str) -> float:
    return next(task.seconds for task in graph.tasks if task.name == name)


# Order.

LAYERS = ("attention {0}", "experts {0}", "sum {0}")
BACK = ("experts {0} back", "sum {0} back", "attention {0} back")


def test_a_step_goes_forward_backward_and_ends_with_the_optimiser() -> None:
    names = [task.name for task in graph_of(cell()).tasks]
    forward = [name.format(layer) for layer in (0, 1) for name in LAYERS]
    backward = [name.format(layer) for layer in (1, 0) for name in BACK]
    assert names == [*forward, "head", "loss", "loss back", "head back", *backward, "optimiser", "optimiser"]


@pytest.mark.parametrize("machine", [CORES, GPU])
@pytest.mark.parametrize("model", [QWEN3, V3])
def test_nothing_overlaps_and_the_parts_are_the_whole(machine: MachineSpec, model: ModelSpec) -> None:
    found = simulate(cell(machine, model))
    assert found.step_s == pytest.approx(sum(span.end_s - span.begin_s for span in found.timeline.spans))
    assert found.parts is not None
    parts = (found.parts.forward_s, found.parts.backward_s, found.parts.optimiser_s)
    assert min(parts) > 0 and sum(parts) == pytest.approx(found.step_s)
    assert found.parts.backward_s > found.parts.forward_s > found.parts.optimiser_s


@pytest.mark.parametrize("machine", [CORES, GPU])
def test_only_training_has_parts(machine: MachineSpec) -> None:
    work = WorkloadSpec(phase="prefill", prompt=64, steps=1)
    assert simulate(replace(cell(machine), workload=work)).parts is None


def test_with_a_gpu_both_directions_copy_and_launch() -> None:
    names = [task.name for task in graph_of(cell(GPU)).tasks]
    for name in ("submit 1", "return 1", "launch attention 1", "launch head", "launch loss"):
        assert name in names and f"{name} back" in names


@pytest.mark.parametrize("machine", [CORES, GPU])
def test_backward_ends_where_nothing_below_is_trained(machine: MachineSpec) -> None:
    def layers(adapters: str) -> list[str]:
        graph = graph_of(cell(machine, V3, work={"adapters": adapters}))
        kinds = ("attention", "experts", "shared", "dense")
        return [task.name for task in graph.tasks if task.name.endswith("back") and task.name.startswith(kinds)]

    assert sorted(layers("both")) == sorted(layers("attention"))
    assert {"dense 0 back", "attention 0 back", "experts 3 back"} <= set(layers("both"))
    assert layers("experts") == ["experts 4 back", "shared 4 back", "attention 4 back", "experts 3 back"]


# Arithmetic.

# Nothing takes time but the arithmetic of kernels at their peaks.
IDEAL = COST[CORES.name].changed(
    {"fused_call_us": 0.0, "torch_expert_ms": 0.0, "torch_layer_us": 0.0, "torch_elementwise_ms_per_mb": 0.0,
     "core_read_gb_per_s": 1e9, "vector_bf16_peak": 1.0, "vector_bf16_overlap": 8.0, "torch_vector_peak": 1.0,
     "attention_vector_peak": 1e9}
)  # fmt: skip
FAST_MEMORY: dict[str, Any] = {"gpu": None, "domains": 1, "read_gb_per_s": 1e9, "remote_gb_per_s": 1e9}
EXPERT, TOKENS, TOP_K = 3 * 2048 * 768, 256, 8


@pytest.mark.parametrize(("vector", "slower"), [("avx512", 2.0), ("avx2", 1.0)])
@pytest.mark.parametrize("recompute", [True, False])
@pytest.mark.parametrize("precision", ["bf16", "int8"])
def test_experts_take_what_their_products_take(vector: str, slower: float, recompute: bool, precision: str) -> None:
    """Forward 3 matrices; backward 3 transposed in float32, at half of bf16's rate on AVX-512, and 2 formed again."""
    machine = testbed(**FAST_MEMORY, vector=vector, amx_tflops=None, amx_int8_tops=None)
    arm = {"avx512": vector == "avx512", "avx2": vector == "avx2"}
    graph = graph_of(
        cell(machine, work={"recompute": recompute, "adapters": "attention"}, precision=precision, **arm),
        IDEAL.changed({"vector_int8_peak": 1.0, "vector_int8_overlap": 8.0}),
    )
    bf16_s = 2 * TOKENS * TOP_K * EXPERT / 7e12
    packed_s = bf16_s / (2 if precision == "int8" else 1)
    assert seconds_of(graph, "experts 1") == pytest.approx(packed_s, rel=0.02)
    wanted_s = slower * bf16_s + (2 / 3 * packed_s if recompute else 0.0)
    assert seconds_of(graph, "experts 1 back") == pytest.approx(wanted_s, rel=0.02)


def test_amx_forms_and_vector_units_go_back() -> None:
    machine = testbed(**FAST_MEMORY)
    ideal = IDEAL.changed({"amx_bf16_peak": 1.0, "amx_bf16_overlap": 8.0})
    arm = {"avx512": False, "amx": True}
    graph = graph_of(cell(machine, work={"adapters": "attention"}, **arm), ideal)
    amx_s = 2 * TOKENS * TOP_K * EXPERT / 60e12
    assert seconds_of(graph, "experts 1") == pytest.approx(amx_s, rel=0.02)
    assert seconds_of(graph, "experts 1 back") == pytest.approx(2 / 3 * amx_s + 2 * amx_s * 60 / 7, rel=0.02)


def test_the_last_experts_backward_need_no_gradient_of_inputs() -> None:
    machine = testbed(**FAST_MEMORY, amx_tflops=None, amx_int8_tops=None)
    graph = graph_of(cell(machine, work={"adapters": "experts", "lora_rank": 1}), IDEAL)
    one_s = 2 * TOKENS * TOP_K * EXPERT / 7e12
    assert seconds_of(graph, "experts 1 back") == pytest.approx((2 / 3 + 2) * one_s, rel=0.03)
    assert seconds_of(graph, "experts 0 back") == pytest.approx((2 / 3 + 2 / 3) * one_s, rel=0.03)


def test_all_but_experts_multiplies_backward_what_it_did_forward_and_lora_twice_as_much() -> None:
    """A layer's projections and router, then LoRA in float32: 2 operations a weight forward, 4 backward."""
    machine = testbed(**FAST_MEMORY, amx_tflops=None, amx_int8_tops=None)
    graph = graph_of(cell(machine, work={"lora_rank": 64}), IDEAL.changed({"torch_overlap": 8.0}))
    projections = 2048 * (4096 + 512 + 512) + 4096 * 2048 + 2048 * 128
    sides = (2048 + 4096) + 2 * (2048 + 512) + (4096 + 2048)
    for name, times in (("attention 1", 1), ("attention 1 back", 2)):
        flops = 2 * TOKENS * projections + 2 * (times * 2 * TOKENS * 64 * sides)  # float32 at half the rate
        assert seconds_of(graph, name) == pytest.approx(flops / 7e12, rel=1e-3)
    head_s = 2 * TOKENS * 2048 * QWEN3.shape.vocab / 7e12
    assert seconds_of(graph, "head") == seconds_of(graph, "head back") == pytest.approx(head_s, rel=1e-3)


def test_lora_of_experts_is_read_once_and_multiplied_for_every_pair() -> None:
    machine = testbed(**FAST_MEMORY, amx_tflops=None, amx_int8_tops=None)
    without, adapted = (
        graph_of(cell(machine, work={"adapters": on, "lora_rank": 64}), IDEAL) for on in ("attention", "both")
    )
    sides = (2048 + 2 * 768) + (768 + 2048)
    for name, times in (("experts 1", 1), ("experts 1 back", 2)):
        more_s = seconds_of(adapted, name) - seconds_of(without, name)
        assert more_s == pytest.approx(times * 2 * TOKENS * TOP_K * 64 * sides / 3.5e12, rel=0.05)


def test_adamw_goes_over_every_number_of_lora_twenty_times() -> None:
    graph = graph_of(cell())
    attention, experts = (task.seconds for task in graph.tasks if task.name == "optimiser")
    numbers = 8 * ((2048 + 4096) + 2 * (2048 + 512) + (4096 + 2048))
    of_experts = 8 * 128 * (2 * 2048 + 3 * 768)
    assert attention == pytest.approx(2 * numbers * 80 / 220e9)
    assert experts == pytest.approx(2 * of_experts * 80 / 220e9)


# With KTransformers' kernels, which go back on AMX over matrices that were transposed at load.
BESIDE = COST[GPU.name].changed(
    {"prefill_call_ms": 0.0, "select_ns": 0.0, "move": 1e9, "thread_gb_per_s": 1e9, "amx_overlap": 8.0,
     "amx_stream": 1.0, "amx_stream_one": 1.0, "launch_us": 0.0, "kernel_us": 0.0}
)  # fmt: skip


@pytest.mark.parametrize(("recompute", "ratio"), [(True, 5 / 3), (False, 1.0)])
def test_beside_a_gpu_backward_is_three_products_and_two_formed_again(recompute: bool, ratio: float) -> None:
    work = {"recompute": recompute, "adapters": "attention", "prompt": 4096}
    graph = graph_of(cell(GPU, V3, work=work, avx512=False, amx=True, numa=True), BESIDE)
    assert seconds_of(graph, "experts 4 back") == pytest.approx(ratio * seconds_of(graph, "experts 4"), rel=0.02)


def test_gpus_hold_different_layers_and_do_not_work_together() -> None:
    assert step_s(cell(real_machine(gpus=4))) == step_s(cell(GPU))


# Work.


@pytest.mark.parametrize("adapters", ["attention", "experts", "both"])
def test_work_is_that_counted_by_hand(adapters: str) -> None:
    """Forward all products, backward those above the first layer and the head; six operations a weight of LoRA."""
    shape = QWEN3.shape
    layer = 2048 * (4096 + 512 + 512) + 4096 * 2048 + 2048 * 128 + TOP_K * EXPERT
    head = 2048 * shape.vocab
    lora = {"attention": 8 * 17408, "experts": TOP_K * 8 * 6400}
    trained = sum(numbers for name, numbers in lora.items() if adapters in (name, "both"))
    work = step_work(cell(work={"adapters": adapters}), COST[CORES.name])
    assert work.tokens == TOKENS
    assert work.flops == 2 * TOKENS * (2 * layer + head) + 2 * TOKENS * (layer + head) + 6 * TOKENS * 2 * trained


def test_beside_a_gpu_the_experts_alone_count() -> None:
    spec = cell(GPU, work={"batch": 16})
    tokens, work = spec.workload.tokens_per_step, step_work(spec, COST[GPU.name])
    wanted = 2 * tokens * TOP_K * EXPERT * (2 + 1) + 6 * tokens * 2 * TOP_K * 8 * 6400
    assert work.flops == pytest.approx(wanted, rel=0.02)
    forward = step_work(
        replace(spec, workload=WorkloadSpec(phase="prefill", prompt=128, batch=16, steps=1)), COST[GPU.name]
    )
    assert work.weight_bytes == 2 * forward.weight_bytes


def test_lora_is_as_large_as_peft_made_it() -> None:
    """What the recorded run notes: trains 6,692,864 numbers of LoRA."""
    one = replace(cell(), model=real_model("qwen3_30b_a3b", num_hidden_layers=1))
    assert one.lora.attention + 128 * one.lora.expert == 6_692_864


# What makes a step longer.

MORE: tuple[dict[str, Any], ...] = (
    {"prompt": 256},
    {"batch": 4},
    {"lora_rank": 64},
)


@pytest.mark.parametrize("machine", [CORES, GPU])
@pytest.mark.parametrize("more", MORE)
def test_more_to_do_takes_longer(machine: MachineSpec, more: dict[str, Any]) -> None:
    assert step_s(cell(machine, work=more)) > step_s(cell(machine))


@pytest.mark.parametrize("machine", [CORES, GPU])
def test_more_that_is_trained_takes_longer_and_what_is_kept_less_time(machine: MachineSpec) -> None:
    both = step_s(cell(machine))
    assert step_s(cell(machine, work={"adapters": "attention"})) < both
    assert step_s(cell(machine, work={"adapters": "experts"})) < both
    assert step_s(cell(machine, work={"recompute": False})) < both


@pytest.mark.parametrize("machine", [CORES, GPU])
def test_a_step_grows_by_the_same_with_every_layer(machine: MachineSpec) -> None:
    depths_s = [step_s(cell(machine, real_model("qwen3_30b_a3b", num_hidden_layers=depth))) for depth in (12, 24, 36)]
    assert depths_s[2] - depths_s[1] == pytest.approx(depths_s[1] - depths_s[0])


@pytest.mark.parametrize(
    ("machine", "better"),
    [
        (CORES, {"cores": 72, "vector_tflops": 14.0, "amx_tflops": 120.0}),
        (CORES, {"read_gb_per_s": 440.0}),
        (GPU, {"vector_tflops": 30.0}),
        (GPU, {"read_gb_per_s": 440.0}),
        (GPU, {"gpu_tflops": 900.0}),
        (GPU, {"gpu_gb_per_s": 4000.0}),
    ],
)
def test_a_better_machine_takes_less_time(machine: MachineSpec, better: dict[str, float]) -> None:
    assert step_s(cell(replace(machine, **better))) < step_s(cell(machine))


# What is refused.


def why(spec: RunSpec) -> str:
    assert spec.machine is not None
    return str(feasibility(spec, Machine.described(spec.machine)) or "")


def test_examples_are_not_learned() -> None:
    spec = cell(model=replace(QWEN3, path="/weights"), work={"examples": "some.jsonl"})
    assert why(spec).startswith("workload.examples=some.jsonl: ")


@pytest.mark.parametrize("machine", [CORES, GPU])
@pytest.mark.parametrize("adapters", ["attention", "experts", "both"])
def test_lora_on_attention_and_on_experts_is_simulated(machine: MachineSpec, adapters: str) -> None:
    assert why(cell(machine, work={"adapters": adapters})) == ""


@pytest.mark.parametrize(
    ("spec", "where"),
    [
        (cell(avx512=False, dynamic=False), "workload.phase=train"),
        (cell(GPU, avx512=False, dynamic=False), "workload.phase=train"),
        (cell(packed_dense=True), "+l"),
        (cell(GPU, cuda_graph=True), "+c"),
        (cell(GPU, deferral=2), "deferral=2"),
        (cell(skipping=2), "skipping=2"),
        (cell(GPU, placement=PlacementSpec(policy="uniform", ratio=0.1)), "engine.placement.policy=uniform"),
        (cell(GPU, device_prefill_tokens=64), "engine.device_prefill_tokens=64"),
        (cell(roles="split"), "engine.roles=split"),
        (cell(GPU, device_precision="int8"), "device_precision=int8"),
        (cell(GPU, device="cpu"), "engine.device=cpu"),
        (cell(work={"prompt": 50_000}), "workload.prompt=50000"),
    ],
)
def test_what_is_not_trained_is_named(spec: RunSpec, where: str) -> None:
    assert why(spec).startswith(f"{where}: ")


def gib(nbytes: float) -> float:
    return nbytes / 2**30


def test_the_networks_part_has_to_fit_on_the_gpu_and_the_experts_with_their_lora_on_the_host() -> None:
    spec = cell(GPU)
    adds = trained_bytes(spec)
    network, experts = gib(device_bytes(spec) + adds.network), gib(routed_bytes(spec) + adds.experts)
    for factor, fits in ((1.001, True), (0.999, False)):
        assert (why(cell(real_machine(gpu_memory_gib=network * factor))) == "") is fits
        assert (why(cell(real_machine(memory_gib=experts / 2 * factor))) == "") is fits
    assert why(cell(real_machine(gpu_memory_gib=network * 0.999))).endswith("of GPU memory")


def test_on_cores_all_of_it_is_in_one_memory() -> None:
    spec = cell()
    adds = trained_bytes(spec)
    needed = gib(device_bytes(spec) + routed_bytes(spec) + adds.network + adds.experts)
    assert why(cell(replace(CORES, memory_gib=needed * 1.001))) == ""
    assert "of memory" in why(cell(replace(CORES, memory_gib=needed * 0.999)))


def test_longer_sequences_need_more_of_a_gpu_and_kept_products_more_of_the_host() -> None:
    plain, longer = (trained_bytes(cell(GPU, work={"prompt": prompt})) for prompt in (128, 4096))
    assert longer.network > plain.network and longer.experts > plain.experts
    kept = trained_bytes(cell(GPU, work={"recompute": False}))
    assert kept.experts > plain.experts and kept.network == plain.network


@pytest.mark.parametrize("name", ["deepseek_v3", "deepseek_v2_lite"])
def test_planned_memory_is_near_the_published(name: str) -> None:
    """Of a GPU not all is planned: CUDA's context, workspaces, and copies of tensors."""
    work = {"prompt": 512, "batch": 1, "adapters": "attention"}
    spec = cell(real_machine("xeon_8488c_4090_48gb", gpus=2), real_model(name), work=work)
    adds, bytes_of = trained_bytes(spec), {"GPU": 0.0, "host": 0.0}
    for number in read_published("sftb"):
        place = next((place for place in bytes_of if f"{place} memory" in number.what), None)
        if place and number.model == name and number.arm == "+v+m+d+n" and number.machine:
            bytes_of[place] = number.value * 1e9
    assert 0.6 * bytes_of["GPU"] < device_bytes(spec) + adds.network < bytes_of["GPU"]
    assert routed_bytes(spec) + adds.experts == pytest.approx(bytes_of["host"], rel=0.1)


# Records and reports.


@pytest.mark.parametrize("machine", [CORES, GPU])
def test_a_record_has_the_parts_and_no_losses(machine: MachineSpec) -> None:
    spec = cell(machine, numa=machine is GPU)
    found = simulated(
        Cell(label=spec.engine.label, spec=spec, spec_id=spec_id(spec)), Environment(env_id="paper", code_id="code")
    )
    assert found.outcome is Outcome.OK and found.roles is None
    assert found.parts is not None and found.parts.losses == ()
    assert all(one.honest for one in found.evidence)


def test_a_sweep_shows_the_parts_and_why_base_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["sweep", "+ablation=sft/kernels", "machine=paper_a100", "run_name=t"]) == 0
    assert "plain PEFT" in capsys.readouterr().out
    base, *others = rows_of(read_run(tmp_path / "runs" / "t"))
    assert base.outcome is Outcome.UNSUPPORTED and not base.values
    for row in others:
        assert row.step_s is not None
        assert sum(row.values[part].mid for part in ("forward_s", "backward_s", "optimiser_s")) == pytest.approx(
            row.step_s.mid
        )


def test_a_recorded_step_is_simulated_part_by_part() -> None:
    """One layer of Qwen3-30B-A3B on two cores; no constant was fitted on training."""
    run = read_run(RECORDED)
    records = {one.key: run.of_cell(one.key) for one in run.header.cells}
    (measured,) = measured_cells(run.environments[0], run.header.cells, records, run.latest().values())
    found = simulate(measured.spec)
    assert measured.spec.engine.label == "+v+d"  # base is plain PEFT
    assert found.step_s == pytest.approx(measured.step_s, rel=0.1)
    (key,) = (one.key for one in run.header.cells if one.label == "+v+d")
    seen = [(record.parts, len(record.samples_s)) for record in records[key] if record.parts]
    assert found.parts is not None
    for name in ("forward_s", "backward_s"):
        wanted = median(getattr(parts, name) / steps for parts, steps in seen)
        assert getattr(found.parts, name) == pytest.approx(wanted, rel=0.15)
