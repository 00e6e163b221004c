"""The engine with its device role on CUDA gives what it gives on cores."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from torch import Tensor

from ktbench.engine.cuda.attention import LONG
from ktbench.engine.load import load_engine
from ktbench.engine.protocol import HostRole
from ktbench.engine.weight_plan import WeightPlan
from ktbench.spec.engine import PlacementSpec
from ktbench.spec.run_spec import ModelSpec, WorkloadSpec
from tests.engine.engines import FUSED, needs_vector
from tests.engine.tiny import decode, prefill, run, spec, tiny_model

pytestmark = pytest.mark.gpu
NAMES = ["qwen3_30b_a3b", "deepseek_v3"]
# bf16 sums in another order; routing is drawn, so both choose the same experts.
TOLERANCE = 0.03


def engine(model: ModelSpec, workload: WorkloadSpec, **features: Any) -> Any:
    asked = spec(model, workload, threads=None, **features)
    cpus = tuple(sorted(os.sched_getaffinity(0)))
    host = HostRole(cores=len(cpus), cpus=cpus)
    system = load_engine(model, WeightPlan.of([asked], host), host)
    system.configure(asked)
    return system


def logits(name: str, workload: WorkloadSpec, **features: Any) -> list[Tensor]:
    return run(engine(tiny_model(name), workload, **features), workload.steps)


def assert_alike(seen: list[Tensor], truth: list[Tensor]) -> None:
    for one, other in zip(seen, truth, strict=True):
        assert (one - other).norm() < TOLERANCE * other.norm()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("work", [decode, prefill])
def test_base(name: str, work: Any) -> None:
    workload = work(batch=2, routing="balanced")
    assert_alike(logits(name, workload, device="cuda"), logits(name, workload))


@needs_vector()
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("work", [decode, prefill])
def test_fused(name: str, work: Any) -> None:
    workload = work(batch=2, routing="balanced")
    assert_alike(logits(name, workload, **FUSED, device="cuda"), logits(name, workload, **FUSED))


@needs_vector()
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("deferral", [0, 1, 2])
@pytest.mark.parametrize("shortest", [None, 5])
def test_replayed_steps(name: str, deferral: int, shortest: int | None) -> None:
    workload = decode(batch=2, steps=5, routing="balanced", shortest=shortest)
    truth = logits(name, workload, **FUSED, deferral=deferral)
    assert_alike(logits(name, workload, **FUSED, device="cuda", deferral=deferral), truth)
    system = engine(tiny_model(name), workload, **FUSED, cuda_graph=True, device="cuda", deferral=deferral)
    before = system.counters()["graph_replays"]
    for _ in range(2):
        assert_alike(run(system, workload.steps), truth)
    assert system.counters()["graph_replays"] - before == 2 * workload.steps
    assert system.notes() == ()


@needs_vector()
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("late", [{}, {"deferral": 1, "defer_prefill": True}], ids=["on time", "deferred"])
@pytest.mark.parametrize("shortest", [None, 5])
def test_replayed_chunks(name: str, late: dict[str, Any], shortest: int | None) -> None:
    workload = prefill(batch=2, routing="balanced", shortest=shortest, chunk=5)
    truth = logits(name, workload, **FUSED, **late)
    system = engine(tiny_model(name), workload, **FUSED, **late, cuda_graph=True, device="cuda")
    before = system.counters()
    for _ in range(2):
        assert_alike(run(system, workload.steps), truth)
    for counter, count in (("graph_replays", 2), ("eager_passes", 1)):
        assert system.counters()[counter] - before[counter] == 2 * workload.steps * count


@needs_vector()
def test_features_are_toggled_on_loaded_weights() -> None:
    """A call captured with other kernels is not replayed; what a step observes agrees with the reference."""
    model, workload = tiny_model(NAMES[0]), decode(batch=2, routing="balanced")
    system = engine(model, workload, **FUSED, cuda_graph=True, device="cuda")
    truth = run(system, workload.steps)
    for features in ({"dynamic": True}, {"cuda_graph": False}, {"cuda_graph": True, "deferral": 1}, {}):
        asked = FUSED | {"cuda_graph": True, "device": "cuda", "threads": None} | features
        system.configure(spec(model, workload, **asked))
        seen = run(system, workload.steps)
        if "deferral" not in features:
            assert_alike(seen, truth)
        for observed in system.observe():
            exact = torch.from_numpy(system.reference(observed))
            assert (torch.from_numpy(observed.output) - exact).norm() <= 0.02 * exact.norm()


@needs_vector()
@pytest.mark.parametrize("name", NAMES)
def test_replayed_steps_far_down_a_context(name: str) -> None:
    workload = decode(batch=2, steps=3, routing="balanced", prompt=2 * LONG, shortest=LONG)
    truth = logits(name, workload, **FUSED)
    assert_alike(logits(name, workload, **FUSED, cuda_graph=True, device="cuda"), truth)


@needs_vector()
@pytest.mark.parametrize("policy", ["uniform", "front_loading", "dynamic"])
def test_experts_at_the_device(policy: str) -> None:
    """They count as the device's work, and give what the host's give."""
    model, workload = tiny_model(NAMES[0]), decode(batch=2, steps=3, routing="balanced")
    placement = PlacementSpec(policy=policy, ratio=0.5, every=1)  # type: ignore[arg-type]
    everywhere = engine(model, workload, **FUSED, cuda_graph=True, device="cuda")
    truth = run(everywhere, workload.steps)
    system = engine(model, workload, **FUSED, cuda_graph=policy != "dynamic", device="cuda", placement=placement)
    assert_alike(run(system, workload.steps), truth)
    least = [one.work() for one in (system, everywhere)]
    assert least[0].weight_bytes < least[1].weight_bytes
