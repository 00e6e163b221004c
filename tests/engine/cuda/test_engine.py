"""The engine with its device role behind a stream, on CPU tensors: what CUDA would do, but for the device itself."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from ktbench.engine import load as loading
from ktbench.engine.cuda.role import CudaRole
from ktbench.engine.decode.program import CallRecorder
from ktbench.engine.hybrid import HybridEngine
from ktbench.engine.protocol import HostRole
from ktbench.engine.roles import split_cpus
from ktbench.engine.weight_plan import WeightPlan
from ktbench.spec.engine import EngineSpec
from ktbench.spec.run_spec import RunSpec, WorkloadSpec
from tests.engine.cuda.fakes import FakeDevice, role_on
from tests.engine.tiny import decode, prefill, run, spec, tiny_model

MODEL = tiny_model("deepseek_v3")


@pytest.fixture
def needs_avx512() -> None:
    kernels = pytest.importorskip("ktbench._kernels", reason="the kernel extension is not built")
    if missing := kernels.grants()["avx512"]:
        pytest.skip(f"avx512: {missing}")


@pytest.fixture(autouse=True)
def faked(monkeypatch: pytest.MonkeyPatch) -> list[FakeDevice]:
    """A CPU that is called as a CUDA device would be."""
    devices: list[FakeDevice] = []

    def opened(call_recorder: CallRecorder) -> CudaRole:
        devices.append(FakeDevice())
        return role_on(devices[-1], call_recorder)

    monkeypatch.setattr(loading, "open_cuda", opened)
    return devices


def loaded(cores: int, *requested: RunSpec) -> HybridEngine:
    cpus = tuple(sorted(os.sched_getaffinity(0))[:cores])
    host = HostRole(cores=len(cpus), cpus=cpus)
    return loading.load_engine(MODEL, WeightPlan.of(requested, host), host)


def engine(workload: WorkloadSpec, **features: Any) -> HybridEngine:
    """Behind a stream, on two cores where there are as many: one of them is the host's."""
    requested = spec(MODEL, workload, threads=None, device="cuda", **features)
    system = loaded(2, requested)
    system.configure(requested)
    return system


def logits(workload: WorkloadSpec, **features: Any) -> list[Tensor]:
    return run(engine(workload, **features), workload.steps)


@cache
def on_cores(packed: bool) -> HybridEngine:
    return loaded(1, spec(MODEL, decode(), threads=None, avx512=packed))


def expected(workload: WorkloadSpec, **features: Any) -> list[Tensor]:
    """What the engine gives on one core."""
    system = on_cores(features.get("avx512", False))
    system.configure(spec(MODEL, workload, threads=None, **features))
    return run(system, workload.steps)


@pytest.mark.parametrize("workload", [decode(batch=2), prefill(batch=2)], ids=["decode", "prefill"])
def test_base_gives_what_it_gives_on_cores(workload: WorkloadSpec) -> None:
    assert all(map(torch.equal, logits(workload), expected(workload)))


@pytest.mark.usefixtures("needs_avx512")
@pytest.mark.parametrize("workload", [decode(batch=2), prefill(batch=2)], ids=["decode", "prefill"])
def test_the_hand_over_changes_nothing(workload: WorkloadSpec) -> None:
    assert all(map(torch.equal, logits(workload, avx512=True), expected(workload, avx512=True)))


@pytest.mark.usefixtures("needs_avx512")
@pytest.mark.parametrize("deferral", [0, 1, 2])
def test_replayed_steps_are_those_of_the_modelling_code(deferral: int, faked: list[FakeDevice]) -> None:
    workload = decode(batch=2, steps=4)
    plain = expected(workload, avx512=True, deferral=deferral)
    system = engine(workload, avx512=True, cuda_graph=True, deferral=deferral)
    before = system.counters()["graph_replays"]
    for _ in range(2):
        seen = run(system, workload.steps)
        for one, other in zip(seen, plain, strict=True):
            assert (one - other).norm() < 0.01 * other.norm()
    assert system.counters()["graph_replays"] - before == 2 * workload.steps
    assert system.notes() == ()
    assert faked[-1].aside_count == 1


@pytest.mark.usefixtures("needs_avx512")
def test_padding_and_windows_are_told_by_masks() -> None:
    workload = decode(batch=3, steps=4, shortest=5)
    plain = expected(workload, avx512=True)
    for one, other in zip(logits(workload, avx512=True, cuda_graph=True), plain, strict=True):
        assert (one - other).norm() < 0.01 * other.norm()


@pytest.mark.usefixtures("needs_avx512")
def test_observations_timeline_and_counters() -> None:
    system = engine(decode(batch=2), avx512=True, cuda_graph=True, deferral=1)
    run(system, 3)
    for seen in system.observe():
        truth = torch.from_numpy(system.reference(seen))
        assert (torch.from_numpy(seen.output) - truth).norm() <= 0.02 * truth.norm()
    spans = system.timeline().spans
    assert [span.kind for span in spans if span.resource == "device"] == ["graph"]
    assert sum(span.resource == "host" for span in spans) == 3, "two MoE layers, of which one has deferred experts too"
    counters = system.counters()
    assert "device_wait_ns" not in counters
    assert counters["host_busy_ns"] > 0


@pytest.mark.usefixtures("needs_avx512")
def test_without_a_graph_a_timeline_shows_who_waits() -> None:
    system = engine(decode(), avx512=True)
    run(system, 3)
    kinds = {span.kind for span in system.timeline().spans if span.resource == "device"}
    assert {"attention", "wait"} <= kinds


@pytest.mark.usefixtures("needs_avx512")
def test_cuda_starts_its_threads_where_callbacks_belong(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that calls functions of the host inherits the cpus of the one that opens the device."""
    seen: list[set[int]] = []
    opened = loading.open_cuda

    def noted(recorder: CallRecorder) -> CudaRole:
        seen.append(os.sched_getaffinity(0))
        return opened(recorder)

    monkeypatch.setattr(loading, "open_cuda", noted)
    before = os.sched_getaffinity(0)
    engine(decode(), avx512=True)
    cpus = tuple(sorted(before))[:2]
    assert seen == [set(split_cpus(cpus, EngineSpec(device="cuda")).callbacks)]
    assert os.sched_getaffinity(0) == before
