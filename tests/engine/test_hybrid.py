"""What the engine computes (for base the logits of Transformers, bit for bit), replays, observes and counts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from ktbench.engine.hybrid import HybridEngine
from ktbench.engine.protocol import ExpertsObservation, Unsupported
from ktbench.engine.routing import Routing as Selected
from ktbench.engine.work import ExpertsWork, mean_work, pass_work
from ktbench.spec.record import Work
from ktbench.spec.run_spec import Routing, WorkloadSpec
from ktbench.spec.shape import moe_shape
from ktbench.spec.weights import FORMATS, expert_bytes
from tests.engine.arrays import relative
from tests.engine.families.plain import build
from tests.engine.prompts import together
from tests.engine.tiny import DISTINCT, decode, facts, load, logits_of_steps, prefill, run, spec, tiny_model


@pytest.mark.peers
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("name", DISTINCT)
def test_base_gives_the_logits_of_transformers(name: str, batch: int) -> None:
    model = tiny_model(name)
    network = build(model)
    for workload in (decode(batch), prefill(batch)):
        for seen, expected in zip(logits_of_steps(model, workload), together(network, workload), strict=True):
            assert torch.isfinite(seen).all()
            assert seen.std() > 0
            assert torch.equal(seen, expected)


QWEN = moe_shape(facts("qwen3_30b_a3b")["config"])  # 2048 x 768
WEIGHTS = 3 * 2048 * 768
ROWS = 768 + 768 + 2048


def test_work_of_a_layer() -> None:
    """Two tokens share expert 3: three experts are read, four run."""
    routing = Selected(ids=torch.tensor([[3, 5], [3, 9]]), gates=torch.full((2, 2), 0.5))
    work = pass_work(None, ExpertsWork(shape=QWEN, precisions=(("int8", "int8"),)), [routing])
    assert work == Work(weight_bytes=3 * (WEIGHTS + 8 * ROWS), flops=2 * 4 * WEIGHTS, tokens=2)
    skipping = pass_work(None, ExpertsWork(shape=QWEN, precisions=(("bf16", "bf16"),), skipping=1), [routing])
    assert skipping.flops == 2 * 2 * WEIGHTS


def test_work_of_layers_that_mix_formats() -> None:
    """As in Q4_K_M: super-blocks of 256 weights of 144 and 210 bytes."""
    routing = Selected(ids=torch.tensor([[3, 5]]), gates=torch.full((1, 2), 0.5))
    mixed = ExpertsWork(shape=QWEN, precisions=(("q4_k", "q6_k"), ("q4_k", "q4_k")))
    one = 2048 * 768
    assert mixed.weight_bytes([routing] * 2) == pytest.approx(
        2 * sum(expert_bytes(QWEN, *pair) for pair in mixed.precisions)
    )
    extra = expert_bytes(QWEN, "q4_k", "q6_k") - expert_bytes(QWEN, "q4_k")
    assert extra == pytest.approx(one * (FORMATS["q6_k"].bits - FORMATS["q4_k"].bits) / 8)


def test_mean_of_steps() -> None:
    works = [Work(weight_bytes=bytes_, flops=10, tokens=2) for bytes_ in (100, 103, 110)]
    assert mean_work(works) == Work(weight_bytes=104, flops=10, tokens=2)


TOLERANCE = 0.01  # the default of MeasureSpec


def ready(workload: WorkloadSpec, name: str = "qwen3_30b_a3b", **engine: int) -> HybridEngine:
    model = tiny_model(name)
    system = load(model)
    system.configure(spec(model, workload, **engine))
    return system


def routed(system: HybridEngine) -> list[tuple[list[list[int]], list[list[float]]]]:
    """Ids and gates of the experts calls of the last step."""
    return [(seen.ids.tolist(), seen.gates.tolist()) for seen in system.observe()]


@pytest.mark.parametrize("name", DISTINCT)
@pytest.mark.parametrize("workload", [decode(batch=3), prefill(batch=2)], ids=["decode", "prefill"])
def test_observed_outputs_agree_with_the_reference(name: str, workload: WorkloadSpec) -> None:
    system = ready(workload, name)
    timed = run(system, workload.steps)[-1]
    seen = system.observe()
    assert [observation.layer for observation in seen] == [
        operator.position.layer for operator in system._components.operators
    ]
    assert np.array_equal(system.logits(), timed.numpy())
    for observation in seen:
        assert len(observation.hidden) == min(workload.tokens_per_step, 12)
        assert relative(observation.output, system.reference(observation)) < TOLERANCE


def test_observations_sample_other_tokens_each_time_and_the_same_in_every_layer() -> None:
    system = ready(prefill(batch=3, prompt=30))
    run(system, 2)
    first, second = system.observe(), system.observe()
    for one, other in zip(first, second, strict=True):
        assert one.hidden.shape == (12, 64)
        assert one.ids.shape == one.gates.shape == (12, 4)
        assert not np.array_equal(one.hidden, other.hidden)


def dropped(seen: ExpertsObservation) -> ExpertsObservation:
    gates = seen.gates.copy()
    gates[:, 0] = 0
    return replace(seen, gates=gates)


def swapped(seen: ExpertsObservation) -> ExpertsObservation:
    return replace(seen, ids=seen.ids[:, [1, 0, 2, 3]])


@pytest.mark.parametrize("mutate", [dropped, swapped])
def test_reference_tells_mutants(mutate: object) -> None:
    system = ready(decode(batch=3))
    run(system, 3)
    for seen in system.observe():
        assert relative(seen.output, system.reference(mutate(seen))) > 5 * TOLERANCE  # type: ignore[operator]


def test_start_and_observe_leave_no_trace() -> None:
    workload = decode(batch=2, steps=4)
    plain = run(ready(workload), 4)
    system = ready(workload)
    system.start()
    seen = []
    for _ in range(4):
        system.step()
        system.observe()
        seen.append(torch.from_numpy(system.logits().copy()))
    assert all(map(torch.equal, seen, plain))
    assert all(map(torch.equal, run(system, 4), plain))


def test_logits_of_a_step_outlive_the_next() -> None:
    system = ready(decode())
    system.step()
    kept = system.logits()
    copy = kept.copy()
    system.step()
    assert np.array_equal(kept, copy)


def test_steps_past_the_workload_are_refused() -> None:
    system = ready(decode(steps=1))
    system.step()
    with pytest.raises(ValueError, match=r"workload\.steps=1"):
        system.step()


def test_calls_before_configure_are_refused() -> None:
    with pytest.raises(ValueError, match="configure comes before"):
        load(tiny_model()).start()


def test_each_prefill_step_has_new_content() -> None:
    one, other = run(ready(prefill()), 2)
    assert not torch.equal(one, other)


def test_work_is_the_mean_over_the_steps_of_the_workload() -> None:
    """Top-4 of 8 experts: one token reads 4 experts a layer, whatever it selects; more tokens read more or fewer."""
    system = ready(decode(batch=3, steps=4, routing="zipf"))
    run(system, 4)
    per_step = [sum(len(ids.unique()) for ids in passes[0].ids) for passes in system._traced.routing]
    assert len(set(per_step)) > 1
    base = ready(decode(batch=3, steps=1, routing="concentrated"))
    run(base, 1)
    expert = 2 * 3 * 64 * 32
    expected = base.work().weight_bytes + expert * (sum(per_step) / 4 - 2 * 4)
    assert system.work().weight_bytes == pytest.approx(expected, abs=1)


@pytest.mark.parametrize("routing", ["model", "balanced", "zipf", "concentrated"])
def test_every_feature_setting_gets_the_same_routing(routing: Routing) -> None:
    workload = decode(batch=2, routing=routing)
    model = tiny_model()
    system = load(model)
    settings = []
    for engine in ({}, {"skipping": 2}, {}):
        system.configure(spec(model, workload, **engine))
        run(system, 3)
        settings.append(routed(system))
    base, skipping, again = settings
    assert base == again
    for (ids, gates), (kept_ids, kept_gates) in zip(base, skipping, strict=True):
        for token in range(2):
            heaviest = sorted(zip(gates[token], ids[token], strict=True), reverse=True)[:2]
            assert sorted(zip(kept_gates[token], kept_ids[token], strict=True), reverse=True) == heaviest


def test_named_routing_overrides_the_router_and_moves_between_steps() -> None:
    system = ready(prefill(routing="concentrated"))
    per_step = []
    system.start()
    for _ in range(2):
        system.step()
        ids = [seen.ids for seen in system.observe()]
        assert all(len(np.unique(layer)) == 4 for layer in ids)
        per_step.append([layer[0].tolist() for layer in ids])
    assert per_step[0] != per_step[1]
    assert per_step[0][0] != per_step[0][1]


def test_workloads_can_change_and_come_back() -> None:
    model = tiny_model()
    system = load(model)
    seen = []
    for workload in (decode(), prefill(), decode()):
        system.configure(spec(model, workload))
        seen.append(run(system, workload.steps))
    assert all(map(torch.equal, seen[0], seen[2]))


def test_least_work_of_decode_by_hand() -> None:
    """Two layers: attention q, k, v, o, its norms and head norms, router, two norms; then last norm and head."""
    system = ready(decode(batch=2, steps=1, routing="concentrated"))
    run(system, 1)
    attention = 64 * (64 + 32 + 32) + 64 * 64
    dense = 2 * (attention + 2 * 16 + 8 * 64 + 2 * 64) + 64 + 256 * 64
    expert = 3 * 64 * 32
    work = system.work()
    assert work.tokens == 2
    assert work.weight_bytes == 2 * (dense + 2 * 4 * expert)
    assert work.flops == 2 * (2 * dense + 2 * 2 * 4 * expert)


def test_skipping_needs_less_work_and_deferral_does_not() -> None:
    works = {}
    for engine in ({}, {"skipping": 2}, {"deferral": 2}):
        system = ready(decode(routing="concentrated"), **engine)
        run(system, 3)
        works[str(engine)] = system.work()
    base, skipping, deferral = works.values()
    assert base == deferral
    assert base.weight_bytes - skipping.weight_bytes == 2 * 2 * 2 * 3 * 64 * 32


def test_active_experts_are_counted_once_and_those_of_a_device_not_at_all() -> None:
    layer = Selected(ids=torch.tensor([[0, 1], [1, 2]]), gates=torch.tensor([[0.9, 0.1], [0.6, 0.4]]))
    one = expert_bytes(QWEN, "bf16")
    there = torch.zeros(2, QWEN.experts, dtype=torch.bool)
    there[1, 1] = True  # in the second layer, where two tokens select it

    def work(**others: Any) -> ExpertsWork:
        return ExpertsWork(shape=QWEN, precisions=(("bf16", "bf16"),), **others)

    assert work().weight_bytes([layer, layer]) == 6 * one
    assert work(skipping=1).weight_bytes([layer]) == 2 * one
    assert work(elsewhere=list(there)).weight_bytes([layer, layer]) == 5 * one
    assert work(elsewhere=list(there)).selections([layer, layer]) == 6
    assert work(elsewhere=list(there), skipping=1).selections([layer, layer]) == 3


def test_features_that_are_not_built_are_refused_with_a_reason() -> None:
    model = tiny_model()
    system = load(model)
    with pytest.raises(Unsupported, match=r"engine\.device=cuda"):
        system.configure(spec(model, decode(), cuda_graph=True))


def test_wrong_model_layout_and_threads_are_refused() -> None:
    model = tiny_model()
    system = load(model)
    with pytest.raises(ValueError, match="mixtral_8x7b requested.*qwen3_30b_a3b is loaded"):
        system.configure(spec(tiny_model("mixtral_8x7b"), decode()))
    with pytest.raises(ValueError, match="packed expert weights were not kept"):
        system.configure(spec(model, decode(), avx512=True))
    with pytest.raises(ValueError, match=r"engine\.threads=4096: allowed are 1 to"):
        system.configure(spec(model, decode(), threads=4096))
    with pytest.raises(ValueError, match="nothing is left to run"):
        load(model, keep_original=False)
