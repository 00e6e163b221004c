"""Fiddler's scheme as a system under test, on a CPU that is called as a CUDA device would be."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from ktbench.engine import load as loading
from ktbench.engine.cuda.fiddler import FiddlerCosts
from ktbench.engine.cuda.role import CudaRole
from ktbench.engine.decode.program import CallRecorder
from ktbench.engine.protocol import HostRole, Unsupported
from ktbench.engine.weight_plan import WeightPlan
from ktbench.peers import fiddler as module
from ktbench.peers.fiddler import Fiddler, open_peer
from ktbench.spec.engine import EngineSpec
from ktbench.spec.run_spec import RunSpec, WorkloadSpec
from tests.engine.cuda.fakes import FakeDevice, role_on
from tests.engine.tiny import decode, prefill, run, tiny_model

MODEL = tiny_model()
CPUS = tuple(sorted(os.sched_getaffinity(0))[:2])
HOST = HostRole(cores=len(CPUS), cpus=CPUS)
WORKLOADS = pytest.mark.parametrize("workload", [decode(batch=3), prefill(batch=2)], ids=["decode", "prefill"])


class Memory:
    """Pins everything but the first tensor."""

    def __init__(self) -> None:
        self.requested: list[int] = []
        self.pinned: list[int] = []

    def pin(self, address: int, _nbytes: int) -> bool:
        self.requested.append(address)
        if len(self.requested) > 1:
            self.pinned.append(address)
        return len(self.requested) > 1

    def unpin(self, address: int) -> None:
        self.pinned.remove(address)


@pytest.fixture(autouse=True)
def faked(monkeypatch: pytest.MonkeyPatch) -> Iterator[Memory]:
    """A CUDA device of CPU tensors, and its pinned memory. PyTorch has its threads back afterwards."""
    memory, threads = Memory(), torch.get_num_threads()
    monkeypatch.setattr(module, "cuda_runtime", lambda: memory)
    monkeypatch.setattr(loading, "open_cuda", _opened)
    yield memory
    torch.set_num_threads(threads)


def _opened(recorder: CallRecorder) -> CudaRole:
    return role_on(FakeDevice(), recorder)


def copied_at(tokens: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """From now on experts are copied from so many tokens on; gives the threads of each measurement of that."""
    measured: list[int] = []

    def measure(*_: Any) -> FiddlerCosts:
        measured.append(torch.get_num_threads())
        return FiddlerCosts(host_call_s=0.0, host_token_s=1e-3, copy_s=1e-3 * (tokens - 0.5), device_s=0.0)

    monkeypatch.setattr(module, "measure_costs", measure)
    return measured


def spec(workload: WorkloadSpec, **engine: Any) -> RunSpec:
    features = EngineSpec(**({"device": "cuda", "threads": 1} | engine))
    return RunSpec(model=MODEL, workload=workload, engine=features, system="fiddler")


def opened(workload: WorkloadSpec, **engine: Any) -> Fiddler:
    requested = spec(workload, **engine)
    system = open_peer([requested], HOST)
    system.configure(requested)
    return system


def base(workload: WorkloadSpec) -> list[Tensor]:
    requested = replace(spec(workload), system="ktbench")
    system = loading.load_engine(MODEL, WeightPlan.of([requested], HOST), HOST)
    system.configure(requested)
    return run(system, workload.steps)


@WORKLOADS
def test_with_every_expert_on_the_host_it_is_base(workload: WorkloadSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    copied_at(10**6, monkeypatch)
    system = opened(workload)
    assert all(map(torch.equal, run(system, workload.steps), base(workload)))
    assert system.counters()["experts_copied"] == 0
    assert system.counters()["experts_on_host"] > 0


@pytest.mark.parametrize(
    ("workload", "tokens"), [(decode(batch=3), 1), (decode(batch=3), 2), (prefill(batch=2), 1), (prefill(batch=2), 13)]
)
def test_copies_give_what_base_gives(workload: WorkloadSpec, tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    copied_at(tokens, monkeypatch)
    system = opened(workload)
    before = system.counters()
    for one, other in zip(run(system, workload.steps), base(workload), strict=True):
        assert (one - other).norm() < 0.01 * other.norm()
    counters = system.counters()
    assert counters["experts_copied"] > before["experts_copied"]
    assert (counters["experts_on_host"] > before["experts_on_host"]) == (tokens > 1)


def test_observations_agree_with_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    copied_at(2, monkeypatch)
    system = opened(prefill(batch=2))
    run(system, 1)
    seen = system.observe()
    assert len(seen) == 2, "MoE layers"
    for one in seen:
        exact = torch.from_numpy(system.reference(one))
        assert (torch.from_numpy(one.output) - exact).norm() < 0.01 * exact.norm()


def test_costs_are_measured_once_for_each_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = copied_at(4, monkeypatch)
    system = open_peer([spec(decode())], HOST)
    for threads in (1, len(CPUS), 1):
        system.configure(spec(decode(), threads=threads))
    assert measured == sorted({1, len(CPUS)})


def test_notes_tell_the_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    copied_at(4, monkeypatch)
    costs, pageable = opened(decode()).notes()
    assert costs == (
        "fiddler: an expert takes 0 ms and 1 ms a token on the host, 3.5 ms to copy and 0 ms to run on the device, "
        "and is copied from 4 tokens on"
    )
    assert pageable.endswith("GiB of the experts could not be pinned and are copied slower")


def test_on_costs_of_this_machine() -> None:
    workload = decode(batch=2)
    system = opened(workload)
    for one, other in zip(run(system, workload.steps), base(workload), strict=True):
        assert (one - other).norm() < 0.01 * other.norm()
    assert " to run on the device, and is " in system.notes()[0]


def test_weights_are_pinned_where_they_lie_and_given_back(faked: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    copied_at(4, monkeypatch)
    system = opened(decode())
    held = {p.data_ptr() for experts in system._layers for p in experts.original.module.parameters()}
    assert set(faked.requested) == held
    assert len(faked.pinned) == len(held) - 1
    system.close()
    assert faked.pinned == []


def test_what_it_cannot_run_is_named() -> None:
    requested = spec(decode(), device="cpu")
    with pytest.raises(Unsupported, match=r"engine\.device=cpu"):
        open_peer([requested], HOST).configure(requested)


def test_another_model_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    copied_at(4, monkeypatch)
    other = replace(spec(decode()), model=tiny_model(seed=1))
    with pytest.raises(ValueError, match="is loaded"):
        open_peer([spec(decode())], HOST).configure(other)
