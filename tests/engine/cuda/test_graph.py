"""A step is warmed up, captured and replayed; what cannot be captured says why."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

from ktbench.engine.backend import MoERuntimeState
from ktbench.engine.cuda.graph import CudaCapturing, GraphRecording
from ktbench.engine.decode.program import CallRecorder, NotRecordable
from ktbench.engine.experts import ExpertsOperator
from ktbench.engine.forms import ExpertsPosition
from ktbench.spec.engine import EngineSpec
from tests.engine.cuda.fakes import DirectExperts, FakeDevice, FakeExperts, role_on

T, K, H = 2, 4, 8


class Step:
    """Three layers of experts on static inputs, as a network would call them."""

    def __init__(self, state: MoERuntimeState, backends: list[object]) -> None:
        self.hidden = torch.zeros(T, H, dtype=torch.bfloat16)
        self.ids, self.gates = torch.zeros(T, K, dtype=torch.int64), torch.zeros(T, K)
        self.operators = [
            ExpertsOperator(
                ExpertsPosition(layer=number, number=number, is_last=number == 2),
                state,
                original=None,
                fused=backend,  # type: ignore[arg-type]
            )
            for number, backend in enumerate(backends)
        ]

    def set(self, seed: int) -> None:
        draw = torch.Generator().manual_seed(seed)
        self.hidden.copy_(torch.randn(T, H, generator=draw))
        self.ids.copy_(torch.randint(0, 6, (T, K), generator=draw))
        self.gates.copy_(torch.rand(T, K, generator=draw))

    def run(self) -> Tensor:
        hidden = self.hidden
        for operator in self.operators:
            hidden = hidden + operator(hidden, self.ids, self.gates)
        return hidden


def recorded(deferral: int) -> tuple[Step, GraphRecording, MoERuntimeState, list[FakeExperts]]:
    device = FakeDevice()
    state = MoERuntimeState(fused=True, concurrent=True, engine=EngineSpec(deferral=deferral))
    role = role_on(device, state.recorder)
    hosts = [FakeExperts() for _ in range(3)]
    step = Step(state, [role.backends(None, host, layer)[1] for layer, host in enumerate(hosts)])
    return step, role.recording(state.counted), state, hosts


@torch.inference_mode()
@pytest.mark.parametrize("deferral", [0, 1, 2])
def test_replays_compute_what_the_inputs_hold_then(deferral: int) -> None:
    step, recording, state, hosts = recorded(deferral)
    direct = Step(
        MoERuntimeState(fused=True, engine=EngineSpec(deferral=deferral)), [DirectExperts() for _ in range(3)]
    )
    step.set(0)
    result = recording.record(step.run)
    made = [len(host.made) for host in hosts]
    for seed in range(1, 4):
        step.set(seed)
        direct.set(seed)
        recording.replay()
        assert torch.equal(result, direct.run())
    assert state.counted["graph_replays"] == 3
    assert made == [len(host.made) for host in hosts], "replays make no calls anew"


@torch.inference_mode()
def test_replays_count_what_operators_count() -> None:
    step, recording, state, _ = recorded(2)
    recording.record(step.run)
    before = state.counted["deferred_experts"]
    recording.replay()
    assert state.counted["deferred_experts"] - before == 2 * T * 2, "all layers but the last"


@torch.inference_mode()
def test_a_graph_in_a_timeline_is_one_span() -> None:
    step, recording, _, _ = recorded(0)
    recording.record(step.run)
    (segment,) = recording.replay_timed()
    assert segment.where.kind == "graph"
    assert segment.begin_ns < segment.end_ns


def test_work_is_warmed_up_aside_before_it_is_captured() -> None:
    done: list[str] = []

    class Device(FakeDevice):
        @contextmanager
        def aside(self) -> Iterator[None]:
            done.append("aside")
            yield
            done.append("joined")

        @contextmanager
        def captured(self) -> Iterator[Any]:
            done.append("captured")
            with super().captured() as graph:
                yield graph

    device = Device()

    def run() -> Tensor:
        done.append("run")
        return torch.ones(1)

    GraphRecording(CallRecorder(), device, device, {}).record(run)
    assert done == ["aside", "run", "run", "joined", "captured", "run"]


def why_not(run: Callable[[], Tensor], device: FakeDevice | None = None) -> str:
    call_recorder, device = CallRecorder(), device or FakeDevice()
    counted: dict[str, int] = {}
    recording = GraphRecording(call_recorder, device, device, counted)
    with pytest.raises(NotRecordable) as raised:
        recording.record(run)
    assert call_recorder.sink is None
    assert counted == {"graph_replays": 0}
    return str(raised.value)


def test_a_step_that_python_decides_is_named_before_any_capture() -> None:
    class NoCapture(FakeDevice):
        def captured(self) -> Iterator[Any]:  # type: ignore[override]
            raise AssertionError("captured what cannot be")

    why = why_not(lambda: torch.ones(3)[torch.ones(3) > 0], NoCapture())
    assert "gives a value that the model's own code depends on" in why


def test_what_cuda_refuses_is_told_by_its_first_line() -> None:
    class Refusing(FakeDevice):
        @contextmanager
        def captured(self) -> Iterator[Any]:
            try:
                yield None  # type: ignore[misc]
                raise RuntimeError("operation not permitted when stream is capturing\nmore words")
            finally:
                raise RuntimeError("operation failed due to a previous error during capture")

    why = why_not(lambda: torch.ones(1), Refusing())
    assert why == "CUDA cannot capture it: operation not permitted when stream is capturing"


def test_memory_that_runs_out_is_no_reason_to_go_on_without_a_graph() -> None:
    """The end of the broken capture raises as well, and later."""

    class Full(FakeDevice):
        @contextmanager
        def captured(self) -> Iterator[Any]:
            try:
                with super().captured() as graph:
                    yield graph
            except torch.OutOfMemoryError:
                raise RuntimeError("operation failed due to a previous error during capture") from None

    runs = []

    def run() -> Tensor:
        runs.append(1)
        if len(runs) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return torch.ones(1)

    device, recorder = Full(), CallRecorder()
    with pytest.raises(torch.OutOfMemoryError):
        GraphRecording(recorder, device, device, {}).record(run)
    assert recorder.sink is None


class Cuda:
    """torch.cuda's part in a capture: its end raises, as it does after work that cannot be captured."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, allocates_on: bool) -> None:
        self.ended: list[tuple[int, int]] = []
        self.collecting: list[bool] = []
        self._allocates_on = allocates_on
        monkeypatch.setattr(torch.cuda, "CUDAGraph", object)
        monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 7))
        monkeypatch.setattr(torch.cuda, "graph", self.graph)
        monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())
        monkeypatch.setattr(torch.cuda, "current_stream", lambda: None)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", self.end, raising=False)

    @contextmanager
    def graph(self, _graph: object, pool: tuple[int, int]) -> Iterator[None]:
        assert pool == (0, 7)
        self.collecting.append(gc.isenabled())
        try:
            yield
        except RuntimeError:
            raise RuntimeError("operation failed due to a previous error during capture") from None

    def end(self, _device: int, pool: tuple[int, int]) -> None:
        if not self._allocates_on:
            raise RuntimeError("endAllocatePool: not currently recording to mempool_id")
        self.ended.append(pool)


@pytest.mark.parametrize("allocates_on", [True, False])
def test_after_a_broken_capture_memory_comes_from_the_usual_pool(
    monkeypatch: pytest.MonkeyPatch, allocates_on: bool
) -> None:
    cuda = Cuda(monkeypatch, allocates_on=allocates_on)
    with pytest.raises(RuntimeError, match="previous error"), CudaCapturing().captured():
        raise RuntimeError("cudaErrorStreamCaptureUnsupported")
    assert cuda.ended == ([(0, 7)] if allocates_on else [])
    assert cuda.collecting == [False]
    assert gc.isenabled()
