"""The task graph of a step: what is deferred, what overlaps, and steps of two layers written out by hand."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from ktbench.sim.calibration import Calibration
from ktbench.sim.cost_gpu import gpu_costs
from ktbench.sim.graph import execute
from ktbench.sim.simulation import step_graph
from ktbench.sim.workloads import passes_of
from ktbench.spec.engine import PlacementSpec
from ktbench.spec.run_spec import ModelSpec, RunSpec
from tests.sim.real import real_cell, real_machine, real_model
from tests.sim.step_cells import (
    COST,
    FREE,
    OFF,
    QWEN2,
    QWEN3,
    V2,
    V3,
    host_s,
    names,
    replace_engine,
    step_s,
)
from tests.sim.testbed import testbed


@pytest.mark.parametrize("model", [V3, V2, QWEN2, QWEN3])
def test_a_layer_calls_the_host_once_and_with_deferral_twice_but_the_last(model: ModelSpec) -> None:
    plain, deferred = (step_graph(real_cell(model, deferral=count), COST) for count in (0, 2))
    moe = range(model.shape.dense_layers, model.shape.layers)
    assert names(plain, "experts") == names(deferred, "experts") == [f"experts {layer}" for layer in moe]
    assert names(plain, "deferred") == []
    assert names(deferred, "deferred") == [f"deferred {layer}" for layer in moe[:-1]]
    work = host_s(deferred) - host_s(plain)
    assert work == pytest.approx((len(moe) - 1) * COST["call_ms"] * 1e-3)


def test_a_deferred_part_is_awaited_by_the_next_moe_layer_and_by_nobody_before() -> None:
    """DESIGN's definition: l = 1 has none due, 1 < l < L defers and is due the last one's, l = L defers none."""
    graph = step_graph(real_cell(V3, deferral=3), COST)
    place = {task.name: at for at, task in enumerate(graph.tasks)}
    for layer in (3, 4, 5):
        awaits = graph.tasks[place[f"sum {layer}"]].after
        due = place.get(f"deferred {layer - 1}")
        assert (due in awaits) == (layer > 3)
        assert place.get(f"deferred {layer}") not in awaits
        assert place[f"return {layer}"] in awaits and place[f"shared {layer}"] in awaits
    for earlier, later in pairwise((3, 4, 5)):
        assert place[f"sum {earlier}"] in graph.tasks[place[f"attention {later}"]].after
        assert graph.tasks[place[f"deferred {earlier}"]].after == graph.tasks[place[f"experts {earlier}"]].after


def test_deferred_experts_run_while_the_device_computes_the_next_attention() -> None:
    graph = step_graph(real_cell(V3, deferral=3), COST)
    execution = execute(graph.tasks)
    place = {task.name: at for at, task in enumerate(graph.tasks)}
    assert execution.begin_s[place["attention 4"]] < execution.end_s[place["deferred 3"]]
    assert execution.begin_s[place["deferred 3"]] == execution.end_s[place["experts 3"]]
    assert execution.begin_s[place["experts 4"]] >= execution.end_s[place["deferred 3"]]


@pytest.mark.parametrize("model", [V3, V2, QWEN2])
@pytest.mark.parametrize("deferral", range(1, 7))
def test_deferral_gains_and_never_more_than_the_device_takes(model: ModelSpec, deferral: int) -> None:
    plain, deferred = (step_graph(real_cell(model, deferral=count), COST) for count in (0, deferral))
    assert execute(deferred.tasks).total_s < execute(plain.tasks).total_s
    assert execute(deferred.tasks).total_s > host_s(plain)


@pytest.mark.parametrize("count", [1, 3, 8])
def test_skipping_leaves_experts_out_in_every_layer(count: int) -> None:
    plain, skipped = (step_graph(real_cell(V3, skipping=skipping), FREE) for skipping in (0, count))
    assert host_s(skipped) == pytest.approx(host_s(plain) * (8 - count) / 8)


@pytest.mark.parametrize("engine", [{"deferral": 2}, {"skipping": 2}])
def test_prefill_defers_and_skips_only_where_it_is_asked_to(engine: dict[str, Any]) -> None:
    plain, acting, idle = (
        step_graph(real_cell(QWEN3, phase="prefill", **changes), COST)
        for changes in ({}, engine | {"defer_prefill": True}, engine)
    )
    assert idle.tasks == plain.tasks
    assert acting.tasks != plain.tasks


# Overlap.


def overlaps(spec: RunSpec) -> bool:
    graph = step_graph(spec, COST)
    execution = execute(graph.tasks)
    shared = [at for at, task in enumerate(graph.tasks) if task.kind == "shared"]
    calls = [at for at, task in enumerate(graph.tasks) if task.kind == "experts"]
    return any(
        min(execution.end_s[one], execution.end_s[other]) > max(execution.begin_s[one], execution.begin_s[other])
        for one in shared
        for other in calls
    )


@pytest.mark.parametrize(
    ("model", "phase", "engine", "wanted"),
    [
        (V3, "decode", {}, True),
        (V3, "decode", {"cuda_graph": False}, False),
        (V2, "decode", {}, True),
        (V2, "decode", {"cuda_graph": False}, False),
        (QWEN2, "decode", {}, True),
        (QWEN2, "decode", {"cuda_graph": False}, True),
        (V3, "prefill", {}, False),
        (V3, "prefill", {"cuda_graph": True}, False),
        (QWEN2, "prefill", {}, True),
        (V3, "decode", OFF, False),
        (QWEN2, "decode", OFF, False),
        (QWEN2, "prefill", OFF, False),
    ],
)
def test_the_shared_expert_runs_beside_the_experts_as_each_familys_module_has_it(
    model: ModelSpec, phase: str, engine: dict[str, Any], wanted: bool
) -> None:
    spec = real_cell(model, phase=phase, **engine)
    assert overlaps(spec) == wanted
    (work,) = passes_of(spec)
    assert (gpu_costs(spec, COST).shared_order(work) == "beside") == wanted


@pytest.mark.parametrize("phase", ["decode", "prefill"])
@pytest.mark.parametrize("model", [V3, V2, QWEN2, QWEN3])
def test_in_base_nothing_overlaps(model: ModelSpec, phase: str) -> None:
    graph = step_graph(real_cell(model, phase=phase, **OFF), COST)
    assert execute(graph.tasks).total_s == pytest.approx(sum(task.seconds for task in graph.tasks))


def test_in_base_nothing_overlaps_with_deferral_either() -> None:
    graph = step_graph(real_cell(V3, **OFF, deferral=2), COST)
    assert execute(graph.tasks).total_s == pytest.approx(sum(task.seconds for task in graph.tasks))


def test_without_a_graph_deepseek_goes_shared_expert_copy_experts_copy() -> None:
    graph = step_graph(real_cell(V3, cuda_graph=False), COST)
    order = [task.name for task in graph.tasks if task.layer == 4 and task.kind != "launch"]
    assert order == ["attention 4", "shared 4", "submit 4", "experts 4", "return 4", "sum 4"]


# Depth, batch, phase.


@pytest.mark.parametrize("engine", [{}, {"cuda_graph": False}, {"deferral": 2}, OFF])
def test_a_step_grows_by_the_same_with_every_layer(engine: dict[str, Any]) -> None:
    depths_s = [
        step_s(real_cell(real_model("qwen3_30b_a3b", num_hidden_layers=depth), **engine)) for depth in (3, 4, 8)
    ]
    assert (depths_s[2] - depths_s[1]) == pytest.approx(4 * (depths_s[1] - depths_s[0]))


@pytest.mark.parametrize("model", [V3, V2, QWEN2, QWEN3])
def test_a_batch_takes_longer_than_one_and_less_than_one_after_the_other(model: ModelSpec) -> None:
    one, four, sixteen = (step_s(real_cell(model, work={"batch": batch})) for batch in (1, 4, 16))
    assert one < four < 4 * one
    assert four < sixteen < 4 * four


def test_deeper_contexts_and_longer_prompts_take_longer() -> None:
    assert step_s(real_cell(V3, work={"prompt": 8192})) > step_s(real_cell(V3, work={"prompt": 32}))
    prompts_s = [step_s(real_cell(V3, phase="prefill", work={"prompt": prompt})) for prompt in (32, 128, 1024, 8192)]
    assert prompts_s == sorted(prompts_s)


def test_only_decode_has_the_hosts_own_work_for_a_token() -> None:
    assert names(step_graph(real_cell(V3), COST), "other")[0] == "step"
    assert "step" not in names(step_graph(real_cell(V3, phase="prefill"), COST), "other")


def test_a_large_hand_over_is_mapped_anew() -> None:
    """7,168 x 2 bytes a token: 32 MiB is 2,340 tokens."""

    def submit_s(prompt: int, cost: Calibration) -> float:
        graph = step_graph(real_cell(V3, phase="prefill", work={"prompt": prompt}), cost)
        return next(task.seconds for task in graph.tasks if task.name == "submit 3")

    free = COST.changed({"fresh_ms_per_mb": 0.0, "sync_ms": 0.0})
    costly = free.changed({"fresh_ms_per_mb": 0.5})
    for prompt, fresh in ((2340, False), (2341, True)):
        moved_mb = prompt * 7168 * 2 * 1e-6
        assert submit_s(prompt, free) == pytest.approx(moved_mb * 1e-3 / COST["pageable_gb_per_s"])
        more_s = submit_s(prompt, costly) - submit_s(prompt, free)
        assert more_s == pytest.approx(0.5e-3 * moved_mb if fresh else 0.0)


@pytest.mark.parametrize(("idle", "layers"), [(0.0, 2), (1.0, 3)])
def test_a_layer_whose_experts_all_live_on_the_device_copies_what_its_system_says(idle: float, layers: int) -> None:
    """Of three layers with experts the first one is on the device."""
    spec = real_cell(V3, placement=PlacementSpec(policy="front_loading", ratio=1 / 3))
    tasks = step_graph(spec, COST.changed({"idle_copies": idle})).tasks
    copies = [task.seconds for task in tasks if task.kind == "copy"]
    assert sum(copies) == pytest.approx(layers * COST["sync_ms"] * 1e-3)


@pytest.mark.parametrize("phase", ["decode", "prefill"])
def test_several_gpus_wait_for_each_other_twice_in_every_layer(phase: str) -> None:
    """Of a microsecond more for an all-reduce; one GPU has none, nor have GPUs that hold different layers."""
    slow = COST.changed({name: COST[name] + 1.0 for name in ("ll_us", "simple_us")})
    for gpus, waits in ((1, 0), (2, 2), (8, 2)):
        spec = real_cell(V3, phase=phase, machine=real_machine(gpus=gpus))
        assert step_s(spec, slow) - step_s(spec) == pytest.approx(waits * V3.shape.layers * 1e-6, rel=1e-6)


def test_a_slow_link_bounds_the_copies_of_prefill() -> None:
    slow, fast = (real_cell(V3, phase="prefill", machine=real_machine(link_gb_per_s=link)) for link in (1.0, 32.0))
    moved_gb = 3 * 2 * 512 * 7168 * 2 * 1e-9  # layers, there and back, tokens, width, bytes
    more_s = moved_gb / 1.0 - moved_gb / COST["pageable_gb_per_s"]
    assert step_s(slow) - step_s(fast) == pytest.approx(more_s)


def test_a_layer_alone_is_one_call_of_its_experts() -> None:
    graph = step_graph(real_cell(QWEN3, phase="layer", work={"batch": 64}), COST)
    assert [(task.resource, task.kind) for task in graph.tasks] == [("host", "experts")]
    assert graph.tasks[0].seconds > 0


def test_a_cell_on_a_machine_without_a_gpu_is_refused() -> None:
    for spec in (real_cell(QWEN3, machine=testbed(gpu=None)), replace(real_cell(QWEN3), machine=None)):
        with pytest.raises(ValueError, match="needs a machine that has one"):
            gpu_costs(spec, COST)


# Chunks of a prompt.


def chunked(model: ModelSpec = V3, chunk: int = 100, **engine: Any) -> RunSpec:
    """A prompt of 256 tokens."""
    return real_cell(model, phase="prefill", work={"prompt": 256, "chunk": chunk}, **engine)


def test_chunks_go_through_one_after_the_other() -> None:
    graph = step_graph(chunked(cuda_graph=False), COST)
    assert names(graph, "experts") == [f"experts {layer}" for layer in (3, 4, 5)] * 3
    heads = [at for at, task in enumerate(graph.tasks) if task.name == "head"]
    assert len(heads) == 3
    first = next(task for task in graph.tasks[heads[0] + 1 :] if task.name == "launch attention 0")
    assert first.after == (heads[0],)


def test_a_prompt_in_one_chunk_is_a_prompt_without_chunks_and_smaller_ones_read_the_experts_more_often() -> None:
    whole, *parts = (step_s(chunked(chunk=chunk, cuda_graph=False)) for chunk in (256, 128, 64, 32))
    unchunked = real_cell(V3, phase="prefill", work={"prompt": 256}, cuda_graph=False)
    assert whole == step_s(unchunked)
    assert all(longer > shorter for shorter, longer in pairwise([whole, *parts]))


def test_whole_chunks_are_graphs_and_what_is_left_is_launched() -> None:
    launched, captured = (names(step_graph(chunked(cuda_graph=on), COST), "launch") for on in (False, True))
    assert len(launched) == 3 * len(captured) > 0
    assert len(names(step_graph(chunked(chunk=128, cuda_graph=True), COST), "launch")) == 0


@pytest.mark.parametrize("model", [V3, QWEN2])
def test_a_graph_of_chunks_saves_launches_and_nothing_else_of_one_chunk(model: ModelSpec) -> None:
    """All of the prompt is there, so attention does not compute more; launches cost nothing without a graph, too."""
    free = COST.changed({"launch_us": 0.0})
    with_graph, without = (chunked(model, chunk=256, cuda_graph=on) for on in (True, False))
    assert step_s(with_graph, COST) < step_s(without, COST)
    attention = [
        sum(task.seconds for task in step_graph(spec, free).tasks if task.kind == "attention")
        for spec in (with_graph, without)
    ]
    assert attention[0] == pytest.approx(attention[1], rel=0.05)


def test_in_a_graph_attention_computes_all_positions_of_the_prompt_in_every_chunk() -> None:
    """Each chunk takes as long as the last one takes without a graph, of a family that computes no less there."""
    cost = COST.changed({"launch_us": 0.0})

    def attention_s(on: bool) -> list[float]:
        graph = step_graph(chunked(QWEN3, chunk=64, cuda_graph=on), cost)
        return [task.seconds for task in graph.tasks if task.name == "attention 0"]

    captured, growing = attention_s(True), attention_s(False)
    assert growing == sorted(set(growing))
    assert captured == pytest.approx([growing[-1]] * 4)


def test_latents_of_the_context_are_expanded_again_in_every_chunk() -> None:
    cost = COST.changed({"launch_us": 0.0, "attention": 1e9})
    graph = step_graph(chunked(chunk=64, cuda_graph=False), cost)
    seconds = [task.seconds for task in graph.tasks if task.name == "attention 0"]
    assert seconds == sorted(set(seconds))


# Placement.


def half(**engine: Any) -> RunSpec:
    return real_cell(QWEN3, placement=PlacementSpec(policy="uniform", ratio=0.5), **engine)


def test_experts_of_the_device_run_beside_those_of_the_host() -> None:
    graph = step_graph(half(), COST)
    own = [task for task in graph.tasks if task.name.startswith("device experts")]
    assert [task.resource for task in own] == ["device"] * 4
    assert all(task.seconds > 0 for task in own)
    plain = step_graph(real_cell(QWEN3), FREE)
    assert host_s(step_graph(half(), FREE)) == pytest.approx(host_s(plain) / 2)


def test_experts_of_the_device_take_their_time_with_deferral_too() -> None:
    graph = step_graph(half(deferral=2), COST)
    assert len([task for task in graph.tasks if task.name.startswith("device experts")]) == 4


TWO_LAYERS = ModelSpec(
    name="two layers",
    config={
        "model_type": "qwen2_moe", "num_hidden_layers": 2, "hidden_size": 1000, "num_experts": 25,
        "num_experts_per_tok": 2, "moe_intermediate_size": 500, "shared_expert_intermediate_size": 500,
        "intermediate_size": 500, "num_attention_heads": 5, "num_key_value_heads": 5, "head_dim": 100,
        "vocab_size": 500,
    },
    full_layers=2,
    full_vocab=500,
)  # fmt: skip
# 100 GB/s from both domains together, from one in base, and from the device's memory; arithmetic takes next to nothing.
ROUND = COST.changed(
    {"decode_stream": 100 / 440, "base_stream": 100 / 220, "gpu_stream": 100 / 1555, "attention": 1.0,
     "gemm": 1.0, "base_peak": 1.0, "step_ms": 0.1, "sync_ms": 0.02, "call_ms": 0.005, "base_expert_ms": 0.005,
     "kernels_grouped": 26, "kernel_us": 0.5, "base_kernels_grouped": 26, "base_launch_us": 0.5}
)  # fmt: skip
# In us: an expert 3 MB, 30; attention 4 MB, its cache 1 MB, the router 0.1 MB, 20 kernels, 61; the shared expert 3 MB,
# 6 kernels, 33; the head 1 MB, 2 kernels, 11; each way of a hand-over 10; a call of the experts 5, an expert in base 5.
DEFERRED_US = [
    ("launch", "step", 0, 100),
    ("device", "attention 0", 100, 161),
    ("link", "submit 0", 161, 171),
    ("host", "experts 0", 171, 206),
    ("host", "deferred 0", 206, 241),
    ("device", "shared 0", 161, 194),
    ("link", "return 0", 206, 216),
    ("device", "sum 0", 216, 216),
    ("device", "attention 1", 216, 277),
    ("link", "submit 1", 277, 287),
    ("host", "experts 1", 287, 352),
    ("device", "shared 1", 277, 310),
    ("link", "return 1", 352, 362),
    ("device", "sum 1", 362, 362),
    ("device", "head", 362, 373),
]
BASE_US = [
    ("launch", "step", 0, 100),
    ("device", "attention 0", 100, 161),
    ("link", "submit 0", 161, 171),
    ("host", "experts 0", 171, 241),
    ("link", "return 0", 241, 251),
    ("device", "shared 0", 251, 284),
    ("device", "sum 0", 284, 284),
    ("device", "attention 1", 284, 345),
    ("link", "submit 1", 345, 355),
    ("host", "experts 1", 355, 425),
    ("link", "return 1", 425, 435),
    ("device", "shared 1", 435, 468),
    ("device", "sum 1", 468, 468),
    ("device", "head", 468, 479),
]


@pytest.mark.parametrize(("engine", "wanted"), [({"deferral": 1}, DEFERRED_US), (OFF, BASE_US)])
def test_a_small_step_is_the_one_written_by_hand(
    engine: dict[str, Any], wanted: list[tuple[str, str, float, float]]
) -> None:
    graph = step_graph(real_cell(TWO_LAYERS, work={"prompt": 500, "steps": 1}, **engine), ROUND)
    execution = execute(graph.tasks)
    assert [(task.resource, task.name) for task in graph.tasks] == [(where, name) for where, name, *_ in wanted]
    assert [begin * 1e6 for begin in execution.begin_s] == pytest.approx([begin for *_, begin, _ in wanted], abs=0.5)
    assert [end * 1e6 for end in execution.end_s] == pytest.approx([end for *_, end in wanted], abs=0.5)


def test_launches_come_before_what_they_launch_where_no_graph_holds_them() -> None:
    cost = ROUND.changed({"launch_us": 1.0})
    graph = step_graph(real_cell(TWO_LAYERS, work={"prompt": 500, "steps": 1}, cuda_graph=False), cost)
    launched = {task.name: task.seconds for task in graph.tasks if task.kind == "launch"}
    kernels = {"attention 0": 20, "shared 0": 6, "attention 1": 20, "shared 1": 6, "head": 2}
    assert launched == pytest.approx({f"launch {name}": count * 1e-6 for name, count in kernels.items()})
    # A shared expert hides its launches and itself behind two experts; nothing hides those of attention and head.
    assert step_s(replace_engine(graph_spec(), cuda_graph=False), cost) - step_s(graph_spec(), cost) == pytest.approx(
        42e-6
    )


def graph_spec() -> RunSpec:
    return real_cell(TWO_LAYERS, work={"prompt": 500, "steps": 1})
