"""The engine with its device role behind a stream, on CPU tensors: what CUDA would do, but for the device itself."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from itertools import product
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
from tests.drawing import few_of
from tests.engine.cuda.fakes import FakeDevice, role_on
from tests.engine.engines import FUSED, needs_vector
from tests.engine.tiny import decode, prefill, run, spec, tiny_model

MODEL = tiny_model("deepseek_v3")


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
    return loaded(1, spec(MODEL, decode(), threads=None, **(FUSED if packed else {})))


def expected(workload: WorkloadSpec, **features: Any) -> list[Tensor]:
    """What the engine gives on one core."""
    system = on_cores(EngineSpec(**features).fused)
    system.configure(spec(MODEL, workload, threads=None, **features))
    return run(system, workload.steps)


@pytest.mark.parametrize("workload", [decode(batch=2), prefill(batch=2)], ids=["decode", "prefill"])
def test_base_gives_what_it_gives_on_cores(workload: WorkloadSpec) -> None:
    assert all(map(torch.equal, logits(workload), expected(workload)))


def test_steps_are_timed_by_the_clock_of_the_device_as_well() -> None:
    """Those since the start alone; cores have no clock of their own."""
    workload = decode(steps=2)
    system = engine(workload)
    assert system.own_step_s() is None
    run(system, workload.steps)
    assert (system.own_step_s() or 0) > 0
    system.start()
    assert system.own_step_s() is None
    cores = on_cores(False)
    cores.configure(spec(MODEL, workload, threads=None))
    run(cores, workload.steps)
    assert cores.own_step_s() is None


@needs_vector()
@pytest.mark.parametrize("workload", [decode(batch=2), prefill(batch=2)], ids=["decode", "prefill"])
def test_the_hand_over_changes_nothing(workload: WorkloadSpec) -> None:
    assert all(map(torch.equal, logits(workload, **FUSED), expected(workload, **FUSED)))


@needs_vector()
@pytest.mark.parametrize("deferral", [0, 1, 2])
def test_replayed_steps_are_those_of_the_modelling_code(deferral: int, faked: list[FakeDevice]) -> None:
    workload = decode(batch=2, steps=4)
    plain = expected(workload, **FUSED, deferral=deferral)
    system = engine(workload, **FUSED, cuda_graph=True, deferral=deferral)
    before = system.counters()["graph_replays"]
    for _ in range(2):
        seen = run(system, workload.steps)
        for one, other in zip(seen, plain, strict=True):
            assert (one - other).norm() < 0.01 * other.norm()
    assert system.counters()["graph_replays"] - before == 2 * workload.steps
    assert system.notes() == ()
    assert faked[-1].aside_count == 1


LATE: dict[str, dict[str, Any]] = {"on time": {}, "deferred": {"deferral": 1, "defer_prefill": True}}


@needs_vector()
@pytest.mark.parametrize("case", few_of(product((1, 5, 13), LATE), {(5, "deferred"), (13, "on time")}), ids=str)
def test_replayed_chunks_are_those_of_the_modelling_code(case: tuple[int, str], faked: list[FakeDevice]) -> None:
    chunk, late = case[0], LATE[case[1]]
    workload = prefill(batch=3, shortest=4, chunk=chunk)
    plain = expected(workload, **FUSED, **late)
    system = engine(workload, **FUSED, **late, cuda_graph=True)
    before = system.counters()
    for _ in range(2):
        for one, other in zip(run(system, workload.steps), plain, strict=True):
            assert (one - other).norm() < 0.01 * other.norm()
    moved = {name: count - before[name] for name, count in system.counters().items()}
    assert moved["graph_replays"] == 2 * workload.steps * (13 // chunk)
    assert moved["eager_passes"] == (2 * workload.steps if 13 % chunk else 0)
    assert moved["deferred_experts"] == (2 * workload.steps * 3 * 13 if late else 0)
    assert faked[-1].aside_count == 1


@needs_vector()
def test_observations_and_timeline_of_replayed_chunks() -> None:
    """What is observed is the last prompt, chunk by chunk; its timeline has a span for each."""
    system = engine(prefill(batch=2, chunk=5), **FUSED, cuda_graph=True)
    timed = run(system, 2)[-1]
    observed = system.observe()
    assert len(observed) == 3 * 2, "three chunks, two MoE layers"
    for seen in observed:
        truth = torch.from_numpy(system.reference(seen))
        assert (torch.from_numpy(seen.output) - truth).norm() <= 0.02 * truth.norm()
    assert (torch.from_numpy(system.logits()) - timed).norm() <= 0.01 * timed.norm()
    spans = system.timeline().spans
    device = [span.kind for span in spans if span.resource == "device"]
    assert device[:2] == ["graph"] * 2 and "attention" in device[2:]
    assert [span.kind for span in spans if span.resource == "host"] == ["experts"] * 3 * 2


class EndRaises(FakeDevice):
    """The end of every capture raises, as CUDA does after work that it cannot capture."""

    @contextmanager
    def captured(self) -> Iterator[Any]:
        with super().captured() as graph:
            yield graph
        raise RuntimeError("operation failed due to a previous error during capture")


@needs_vector()
@pytest.mark.parametrize("workload", [decode(batch=2), prefill(batch=2, chunk=5)], ids=["decode", "prefill"])
def test_a_capture_whose_end_raises_leaves_the_modelling_code(
    workload: WorkloadSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "open_cuda", lambda recorder: role_on(EndRaises(), recorder))
    plain = expected(workload, **FUSED)
    system = engine(workload, **FUSED, cuda_graph=True)
    for one, other in zip(run(system, workload.steps), plain, strict=True):
        assert (one - other).norm() < 0.01 * other.norm()
    (note,) = system.notes()
    assert "previous error during capture" in note
    assert system.counters()["graph_replays"] == 0


@needs_vector()
def test_padding_and_windows_are_told_by_masks() -> None:
    workload = decode(batch=3, steps=4, shortest=5)
    plain = expected(workload, **FUSED)
    for one, other in zip(logits(workload, **FUSED, cuda_graph=True), plain, strict=True):
        assert (one - other).norm() < 0.01 * other.norm()


@needs_vector()
def test_observations_timeline_and_counters() -> None:
    system = engine(decode(batch=2), **FUSED, cuda_graph=True, deferral=1)
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


@pytest.mark.parametrize(("number", "name"), [(1, "FlashAttention"), (2, "memory-efficient attention")])
def test_notes_name_the_kernels_of_attention_once_they_are_observed(
    number: int, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "_fused_sdp_choice", lambda *_, **__: number)
    system = engine(decode(batch=2))
    run(system, 3)
    assert system.notes() == ()
    system.observe()
    (note,) = system.notes()
    assert name in note


@needs_vector()
def test_notes_tell_what_is_streamed_from_memory_that_is_not_pinned() -> None:
    workload = prefill(batch=2)
    assert engine(workload, **FUSED).notes() == ()
    system = engine(workload, **FUSED, device_prefill_tokens=1)
    pins = system._components.cuda._pins  # type: ignore[union-attr]
    assert pins.pageable_bytes > 0
    assert system.notes() == (pins.note,)


@needs_vector()
def test_without_a_graph_a_timeline_shows_who_waits() -> None:
    system = engine(decode(), **FUSED)
    run(system, 3)
    kinds = {span.kind for span in system.timeline().spans if span.resource == "device"}
    assert {"attention", "wait"} <= kinds


@needs_vector()
def test_cuda_starts_its_threads_where_callbacks_belong(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that calls functions of the host inherits the cpus of the one that opens the device."""
    seen: list[set[int]] = []
    opened = loading.open_cuda

    def noted(recorder: CallRecorder) -> CudaRole:
        seen.append(os.sched_getaffinity(0))
        return opened(recorder)

    monkeypatch.setattr(loading, "open_cuda", noted)
    before = os.sched_getaffinity(0)
    engine(decode(), **FUSED)
    cpus = tuple(sorted(before))[:2]
    assert seen == [set(split_cpus(cpus, EngineSpec(device="cuda")).callbacks)]
    assert os.sched_getaffinity(0) == before
