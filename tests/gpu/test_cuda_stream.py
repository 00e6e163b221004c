"""Host functions in the order of a real stream, eager and captured."""

from __future__ import annotations

import ctypes
import time

import pytest
import torch
from torch import Tensor

from ktbench.engine.cuda.graph import CudaCapturing, GraphRecording
from ktbench.engine.cuda.stream import CurrentStream, SideStream
from ktbench.engine.decode.program import CallRecorder, NotRecordable

pytestmark = pytest.mark.gpu
HostFunction = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Doubling:
    """A host function that takes its time and then doubles what lies in pinned memory."""

    def __init__(self) -> None:
        self.memory = torch.empty(1000, pin_memory=True)
        self._numbers, self.calls = self.memory.numpy(), 0
        self._function = HostFunction(self._double)
        self.address = ctypes.cast(self._function, ctypes.c_void_p).value or 0

    def _double(self, _data: int | None) -> None:
        time.sleep(0.02)
        self._numbers *= 2
        self.calls += 1

    def put(self, side: SideStream, x: Tensor) -> Tensor:
        output = torch.empty_like(x)
        side.fork()
        side.copy(self.memory, x)
        side.call(self.address, 0)
        side.copy(output, self.memory)
        side.join()
        return output


def test_a_host_function_runs_between_the_copies_around_it() -> None:
    side, doubling = SideStream(), Doubling()
    x = torch.arange(1000.0, device="cuda")
    argument = x + 1
    seen = doubling.put(side, argument)
    again = doubling.put(side, seen)
    CurrentStream().finish()
    assert torch.equal(seen, 2 * (x + 1))
    assert torch.equal(again, 4 * (x + 1))
    assert doubling.calls == 2


def test_it_follows_whichever_stream_is_current() -> None:
    side, doubling = SideStream(), Doubling()
    x = torch.ones(1000, device="cuda")
    other = torch.cuda.Stream()
    other.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(other):
        seen = doubling.put(side, x)
        CurrentStream().finish()
    assert torch.equal(seen, 2 * x)


def test_a_captured_host_function_runs_with_every_replay() -> None:
    stream, side, doubling = CurrentStream(), SideStream(), Doubling()
    counted: dict[str, int] = {}
    recording = GraphRecording(CallRecorder(), stream, CudaCapturing(), counted)
    x = torch.zeros(1000, device="cuda")
    result = recording.record(lambda: doubling.put(side, x) + 1)
    stream.finish()
    calls = doubling.calls
    for number in range(3):
        x.fill_(number)
        recording.replay()
        stream.finish()
        assert (result == 2 * number + 1).all()
    assert doubling.calls == calls + 3
    assert counted == {"graph_replays": 3}


def test_after_a_step_that_cannot_be_captured_the_device_works_on() -> None:
    before = torch.cuda.current_stream()
    recording = GraphRecording(CallRecorder(), CurrentStream(), CudaCapturing(), {})
    pageable = torch.ones(1000)
    with pytest.raises(NotRecordable):
        recording.record(pageable.cuda)
    assert torch.cuda.current_stream() == before
    x = torch.ones(8, device="cuda")
    result = recording.record(lambda: x + 1)
    recording.replay()
    assert (result == 2).all()
