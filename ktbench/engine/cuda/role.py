"""What an engine whose device role is a CUDA device has besides: its stream, its hand-overs and its graphs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter_ns

import torch

from ktbench.engine.cuda.graph import Capturing, CudaCapturing, GraphRecording
from ktbench.engine.cuda.handover import CudaHandOver, CudaOriginal, HostExperts, Staging
from ktbench.engine.cuda.stream import CurrentStream, Stream
from ktbench.engine.decode.inputs import StepInputs
from ktbench.engine.decode.program import Tape
from ktbench.engine.experts import OriginalExperts


class MaskedAttention:
    """Attention of a step as the network does it anyway, told by masks what it may see."""

    def __init__(self) -> None:
        self.by_mask = 0
        self.lower = None

    def make_room(self, _room: int) -> None:
        """Nothing is kept at hand."""

    @contextmanager
    def of_step(self, _inputs: StepInputs) -> Iterator[None]:
        """A step runs inside, which needs its masks."""
        self.by_mask += 1
        yield


class CudaRole:
    """One for all layers of an engine, which lie on `device` and whose work goes through `stream`.

    `originals` are the experts that base runs on the host, layer after layer.
    """

    def __init__(self, tape: Tape, device: torch.device, stream: Stream, capturing: Capturing) -> None:
        self.device, self.stream, self.attention = device, stream, MaskedAttention()
        self._tape, self._capturing = tape, capturing
        self._staging = Staging()
        self.originals: list[OriginalExperts] = []
        self._hand_overs: list[CudaHandOver] = []
        tape.watch.clock = self._finished_ns

    @classmethod
    def open(cls, tape: Tape) -> CudaRole:
        """On PyTorch's current device. Raises OSError where no CUDA runtime is loaded."""
        return cls(tape, torch.device("cuda", torch.cuda.current_device()), CurrentStream(), CudaCapturing())

    def backends(
        self, original: OriginalExperts | None, packed: HostExperts | None, layer: int
    ) -> tuple[CudaOriginal | None, CudaHandOver | None]:
        """How the device calls the experts of decoder layer `layer`, which stay on the host."""
        return (
            None if original is None else self._base(original),
            None if packed is None else self._hand_over(packed, layer),
        )

    def _base(self, original: OriginalExperts) -> CudaOriginal:
        self.originals.append(original)
        return CudaOriginal(original)

    def _hand_over(self, packed: HostExperts, layer: int) -> CudaHandOver:
        self._hand_overs.append(CudaHandOver(packed, self.stream, self._staging, self._tape.watch, layer))
        return self._hand_overs[-1]

    def recording(self, counted: dict[str, int]) -> GraphRecording:
        """For a step to be captured; `counted["graph_replays"]` counts its replays."""
        return GraphRecording(self._tape, self.stream, self._capturing, counted)

    def check(self) -> None:
        """Raise what went wrong in calls of the host since the last check; all that was started must be finished."""
        for hand_over in self._hand_overs:
            hand_over.check()

    def _finished_ns(self) -> int:
        """Time for a timeline: what was put into the stream before is done. The host's own threads go on meanwhile."""
        self.stream.finish()
        return perf_counter_ns()
