"""Fiddler's scheme with weights that really go over the link."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

from ktbench.engine.cuda.fiddler import FiddlerCosts, FiddlerRuntime, measure_costs
from ktbench.engine.cuda.stream import CurrentStream, Pins, cuda_runtime
from ktbench.engine.protocol import HostRole
from ktbench.engine.routing import Routing
from ktbench.peers import fiddler as module
from ktbench.peers.fiddler import open_peer
from ktbench.spec.engine import EngineSpec
from ktbench.spec.run_spec import RunSpec
from tests.engine.cuda.test_fiddler import DEVICE, FAMILIES, HOST, call, copied_at, drawn, error, original
from tests.engine.tiny import decode, load, prefill, run, spec, tiny_model

pytestmark = pytest.mark.gpu
# bf16 sums in another order; a router may choose another expert where two scores are alike.
TOLERANCE = 0.03


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tokens", [1, 7, 40])
@pytest.mark.parametrize("decided_by", [HOST, DEVICE, copied_at(3)], ids=["host", "device", "both"])
def test_every_side_against_float32(family: str, tokens: int, decided_by: FiddlerCosts) -> None:
    copier = FiddlerRuntime(torch.device("cuda"), CurrentStream(), {})
    copier.costs = decided_by
    experts, (hidden, routing) = copier.experts(original(family)), call(drawn(tokens))
    there = Routing(ids=routing.ids.cuda(), gates=routing.gates.cuda())
    output = experts(hidden.cuda(), there)
    assert output.is_cuda
    assert error(output.cpu(), hidden, routing, family) < 0.01


def test_pinned_memory_is_seen_as_such_and_given_back() -> None:
    torch.cuda.init()
    pins, weights = Pins(cuda_runtime()), torch.ones(1 << 20)
    pins.add(weights)
    assert weights.is_pinned()
    assert pins.pageable_bytes == 0
    pins.release()
    assert not weights.is_pinned()


def test_memory_that_is_pinned_already_does_no_harm() -> None:
    pins, weights = Pins(cuda_runtime()), torch.ones(1 << 20).pin_memory()
    pins.add(weights)
    assert (weights.cuda() + 1 == 2).all(), "no error is left for the next kernel"
    pins.release()


def test_costs_of_this_machine() -> None:
    copier = FiddlerRuntime(torch.device("cuda"), CurrentStream(), {})
    costs = measure_costs(copier.experts(original()))
    assert costs.copy_s > 0
    assert costs.device_s > 0


@pytest.mark.parametrize("work", [decode, prefill])
@pytest.mark.parametrize("tokens", [1, 3, 10**6])
def test_the_system_gives_what_base_gives(work: Any, tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "measure_costs", lambda _: copied_at(tokens))
    model, workload = tiny_model(), work(batch=2)
    cpus = tuple(sorted(os.sched_getaffinity(0)))
    requested = RunSpec(model=model, workload=workload, engine=EngineSpec(device="cuda"), system="fiddler")
    system = open_peer([requested], HostRole(cores=len(cpus), cpus=cpus))
    system.configure(requested)
    base = load(model)
    base.configure(spec(model, workload))
    for one, other in zip(run(system, workload.steps), run(base, workload.steps), strict=True):
        assert (one - other).norm() < TOLERANCE * other.norm()
    system.close()
