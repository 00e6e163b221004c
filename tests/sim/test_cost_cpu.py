"""One step of our engine on cores: limits, order, overlap, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import isclose
from typing import Any

import pytest

from ktbench.sim.calibration import Calibration, read_calibration
from ktbench.sim.graph import Graph, apply_contention, execute
from ktbench.sim.simulation import resolved_deferral, step_counters, step_graph, step_seconds, step_work, with_deferral
from ktbench.spec.engine import PlacementSpec
from ktbench.spec.run_spec import RunSpec
from tests.sim.testbed import cell_on, testbed

COST = read_calibration("ktbench")
step_s = partial(step_seconds, cost=COST)
LEAN = {"packed_dense": True}
SPLIT = {"packed_dense": True, "roles": "split"}
# A machine like those that constants were fitted on: memory is what a step waits for.
SMALL = {"gpu": None, "domains": 1, "cores": 8, "read_gb_per_s": 40.0, "remote_gb_per_s": 40.0, "vector_tflops": 2.0,
         "vector_int8_tops": 6.0, "amx_tflops": 20.0, "amx_int8_tops": 40.0}  # fmt: skip


def cell(*, prompt: int = 64, phase: str = "decode", machine: dict[str, Any] | None = None, **engine: Any) -> RunSpec:
    return cell_on(testbed(**(SMALL | (machine or {}))), phase=phase, prompt=prompt, **engine)


def free_of_overheads(cost: Calibration) -> Calibration:
    """Kernels that reach every limit, calls that cost nothing."""
    fixed = [name for name, one in cost.constants.items() if one.unit.startswith(("us", "ms", "core "))]
    shares = [name for name, one in cost.constants.items() if one.unit.startswith("of ")]
    return cost.changed(dict.fromkeys(fixed, 0.0) | dict.fromkeys(shares, 1.0))


@pytest.mark.parametrize("phase", ["decode", "prefill"])
@pytest.mark.parametrize("engine", [{"avx512": False, "dynamic": False}, {}, {"amx": True}, LEAN, SPLIT])
@pytest.mark.parametrize("constant", ["read_gb_per_s", "vector_tflops", "vector_int8_tops", "amx_tflops", "cores"])
def test_more_of_a_resource_is_never_slower(phase: str, engine: dict[str, Any], constant: str) -> None:
    more = 2 * SMALL[constant]
    assert step_s(cell(phase=phase, machine={constant: more}, **engine)) <= step_s(cell(phase=phase, **engine)) * 1.0001


def test_without_overheads_decode_takes_the_time_of_its_bytes() -> None:
    spec = cell(prompt=1, machine={"vector_tflops": 1e6}, **LEAN)
    cost = free_of_overheads(COST)
    cached = 4 * 2 * 2 * 128 * 2  # layers, keys and values, their heads, width, bytes
    assert isclose(step_s(spec, cost=cost), (step_work(spec, cost).weight_bytes + cached) / 40e9, rel_tol=1e-4)


def test_without_overheads_a_large_prefill_takes_the_time_of_its_products() -> None:
    spec = cell(
        phase="prefill", prompt=2048, machine={"read_gb_per_s": 1e6, "amx_tflops": None, "amx_int8_tops": None}, **LEAN
    )
    cost = free_of_overheads(COST)
    scores = 4 * 2 * 2048 * 2048 * 2 * 16 * 128  # layers, multiply and add, pairs, keys and values, heads, width
    assert isclose(step_s(spec, cost=cost), (step_work(spec, cost).flops + scores) / 2e12, rel_tol=0.02)


def test_layers_add_up() -> None:
    graph = step_graph(cell(), COST)
    layers = [sum(task.seconds for task in graph.tasks if task.layer == layer) for layer in range(4)]
    rest = sum(task.seconds for task in graph.tasks if task.layer is None)
    assert all(isclose(one, layers[0]) for one in layers)
    assert isclose(step_s(cell()), 4 * layers[0] + rest)


@pytest.mark.parametrize("engine", [LEAN, SPLIT])
def test_fewer_bits_are_faster_where_memory_is_the_limit(engine: dict[str, Any]) -> None:
    spec = cell(**engine)
    took = [step_s(replace(spec, precision=one, device_precision=one)) for one in ("bf16", "int8", "int4_g128")]
    assert took == sorted(took, reverse=True)
    assert took[0] > 1.5 * took[1]


def test_each_feature_of_the_ladder_gains() -> None:
    base, fused = cell(avx512=False, dynamic=False), cell()
    assert step_s(base) > step_s(fused) > step_s(cell(**LEAN))
    skewed = replace(fused, workload=replace(fused.workload, phase="prefill", prompt=512, steps=1))
    static = replace(skewed, engine=replace(skewed.engine, dynamic=False))
    assert step_s(static) > step_s(skewed)


def test_own_domains_save_remote_reads() -> None:
    two = {"domains": 2, "remote_gb_per_s": 20.0}
    assert step_s(cell(machine=two, **LEAN, numa=True)) < step_s(cell(machine=two, **LEAN))
    assert step_s(cell(**LEAN, numa=True)) == step_s(cell(**LEAN))


def test_depth_costs_the_modelling_code_more_than_the_recorded_step() -> None:
    modules, lean = (step_s(cell(prompt=8192, **e)) - step_s(cell(prompt=64, **e)) for e in ({}, LEAN))
    assert modules > lean > 0


def test_roles_work_at_the_same_time_only_where_they_are_apart() -> None:
    for engine, overlap in ((SPLIT, True), (LEAN, False)):
        graph = step_graph(cell(**engine, deferral=3), COST)
        busy = sum(task.seconds for task in graph.tasks)
        assert (busy > 1.01 * execute(graph.tasks).total_s) == overlap
    assert step_s(cell(**SPLIT, deferral=3)) < step_s(cell(**SPLIT))
    assert step_s(cell(**LEAN, deferral=3)) >= step_s(cell(**LEAN))


def test_deferral_leaves_the_last_layer_whole() -> None:
    names = [task.name for task in step_graph(cell(**SPLIT, deferral=3), COST).tasks if task.kind == "deferred"]
    assert names == ["deferred 0", "deferred 1", "deferred 2"]
    prefill = step_graph(cell(phase="prefill", **SPLIT, deferral=3), COST)
    assert all(task.kind != "deferred" for task in prefill.tasks)


def test_deferral_auto_takes_the_smallest_that_keeps_the_host_busy() -> None:
    spec = cell(**SPLIT, deferral="auto")
    chosen = resolved_deferral(spec, COST)
    assert 0 <= chosen <= 6
    assert step_s(spec) == step_s(with_deferral(spec, chosen))


def test_skipping_leaves_work_out() -> None:
    assert step_s(cell(**LEAN, skipping=4)) < step_s(cell(**LEAN))
    assert step_work(cell(skipping=4), COST).weight_bytes < step_work(cell(), COST).weight_bytes


def test_a_chunked_prefill_reads_weights_again() -> None:
    whole = cell(phase="prefill", prompt=256, **LEAN)
    chunked = replace(whole, workload=replace(whole.workload, chunk=64))
    assert step_s(chunked) > step_s(whole)
    assert step_work(chunked, COST).tokens == step_work(whole, COST).tokens == 256
    assert step_work(chunked, COST).weight_bytes > 2 * step_work(whole, COST).weight_bytes


@pytest.mark.parametrize("lengths, ends", [((1.0, 1.0), (2.0, 2.0)), ((1.0, 3.0), (2.0, 4.0))])
def test_tasks_side_by_side_share_what_both_read(lengths: tuple[float, float], ends: tuple[float, float]) -> None:
    alone, contended = Graph(), Graph()
    for resource, seconds in zip(("host", "device"), lengths, strict=True):
        alone.add("task", "other", resource, seconds)  # type: ignore[arg-type]
        contended.add("task", "other", resource, 2 * seconds)  # type: ignore[arg-type]
    assert execute(apply_contention(alone, contended).tasks).end_s == pytest.approx(ends, rel=0.01)


def test_counters_move_with_their_features() -> None:
    counters = step_counters(cell(**SPLIT, amx=True, deferral=2), COST)
    assert counters["avx512_calls"] > 0 and counters["amx_tiles"] == 0, "one token per expert stays on AVX-512"
    assert counters["tasks_dynamic"] > 0 and counters["linear_calls"] == 9
    assert counters["deferred_experts"] == 2 * 3 and counters["skipped_experts"] == 0
    assert counters["local_bytes"] == counters["graph_replays"] == 0
    assert not any(step_counters(cell(avx512=False, dynamic=False), COST).values())


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"system": "llama.cpp", "engine": {"avx512": False, "dynamic": False}}, "system=llama.cpp: without a GPU"),
        ({"engine": {"threads": 99}}, "engine.threads=99: allowed are 1 to 8"),
        ({"engine": {"roles": "split", "threads": 1}}, "engine.roles=split: needs a core for each role"),
        ({"engine": {"roles": "split", "placement": PlacementSpec(policy="uniform", ratio=0.5)}},
         "engine.placement.policy=uniform: without a GPU only policy=host"),
    ],
)  # fmt: skip
def test_what_is_not_simulated_is_refused_in_one_line(changes: dict[str, Any], message: str) -> None:
    spec = replace(cell(**changes["engine"]), system=changes.get("system", "ktbench"))
    with pytest.raises(ValueError, match=message) as raised:
        step_graph(spec, COST)
    assert "\n" not in str(raised.value)
