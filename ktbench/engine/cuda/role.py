"""The CUDA device role: calls of experts on the host in stream order, and captured steps.

Letters: T tokens of a call, k experts of a token, H hidden width.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter_ns
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ktbench.engine.cuda.graph import CudaCapturing, GraphRecording
from ktbench.engine.cuda.stream import CurrentStream
from ktbench.engine.decode.inputs import StepInputs
from ktbench.engine.decode.lazy import Fetch
from ktbench.engine.decode.program import CallRecorder
from ktbench.engine.decode.timeline import ModuleWatch, Where
from ktbench.engine.experts import Backend, OriginalExperts
from ktbench.engine.forms import ExpertMatrices
from ktbench.engine.routing import Routing

if TYPE_CHECKING:
    from ktbench._kernels import HostCall
    from ktbench.engine.fused import FusedExperts


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Buffers:
    """Host memory of a call in flight: `hidden` and `output` [T, H], ids and gates of `routing` [T, k]."""

    number: int
    hidden: Tensor
    routing: Routing
    output: Tensor


class Staging:
    """Buffers of the calls of all layers, a set for each call that is in flight at the same time.

    In the order of one stream a set is free again once its output has been copied. The lowest free number is taken, so
    every pass of the same shapes uses the same memory. Nothing is given back to the system: a stream or a graph that
    holds addresses may yet run.
    """

    def __init__(self) -> None:
        self._free: dict[tuple[int, ...], list[Buffers]] = {}
        self._made = 0

    def take(self, hidden: Tensor, routing: Routing) -> Buffers:
        """Buffers for such a call, pinned where `hidden` is a CUDA device's."""
        free = self._free.setdefault(_size(hidden, routing), [])
        if not free:
            return self._make(hidden, routing)
        lowest = min(free, key=lambda buffers: buffers.number)
        free.remove(lowest)
        return lowest

    def give(self, buffers: Buffers) -> None:
        """Whatever is put into the stream from now on may use them."""
        self._free[_size(buffers.hidden, buffers.routing)].append(buffers)

    def _make(self, hidden: Tensor, routing: Routing) -> Buffers:
        self._made += 1
        return Buffers(
            number=self._made,
            hidden=_on_host(hidden),
            routing=Routing(ids=_on_host(routing.ids), gates=_on_host(routing.gates)),
            output=_on_host(hidden),
        )


def _size(hidden: Tensor, routing: Routing) -> tuple[int, ...]:
    return (*hidden.shape, *routing.ids.shape)


def _on_host(like: Tensor) -> Tensor:
    return torch.empty(like.shape, dtype=like.dtype, pin_memory=like.is_cuda)


class HostOffloadBackend:
    """Backend of the experts of decoder layer `layer`: all tensors on the device, the work on the host.

    Submit and wait are host functions in the stream, so Python never blocks and a captured call needs none of it.
    """

    def __init__(
        self, experts: FusedExperts, stream: CurrentStream, staging: Staging, watch: ModuleWatch, layer: int
    ) -> None:
        self._experts, self._stream, self._staging = experts, stream, staging
        self._watch, self._where = watch, Where("wait", layer)
        self._settings: object = None
        self._calls: dict[Buffers, HostCall] = {}

    def __call__(self, hidden: Tensor, routing: Routing) -> Tensor:
        """[T, H] bf16 of `hidden` [T, H] bf16."""
        return self.start(hidden, routing)()

    def start(self, hidden: Tensor, routing: Routing) -> Fetch:
        """Puts copies and submit into the stream; what is given back puts the wait and the copy back."""
        stream, hidden = self._stream, hidden.contiguous()
        buffers = self._staging.take(hidden, routing)
        call = self._call(buffers)
        stream.copy(buffers.hidden, hidden)
        stream.copy(buffers.routing.ids, routing.ids)
        stream.copy(buffers.routing.gates, routing.gates)
        stream.call(call.submit, call.data)

        def fetch() -> Tensor:
            output = torch.empty_like(hidden)
            self._watch.enter(self._where)
            stream.call(call.wait, call.data)
            self._watch.leave()
            stream.copy(output, buffers.output)
            self._staging.give(buffers)
            return output

        return fetch

    def _call(self, buffers: Buffers) -> HostCall:
        """Made once per set of buffers; calls for other kernels or threads are dropped once the stream is finished."""
        if self._settings != self._experts.settings:
            self._stream.finish()
            self._calls.clear()
            self._settings = self._experts.settings
        if buffers not in self._calls:
            self._calls[buffers] = self._experts.host_call(buffers.hidden, buffers.routing, buffers.output)
        return self._calls[buffers]

    def check(self) -> None:
        """Raise what went wrong in a call since the last check: C functions have no way to."""
        for call in self._calls.values():
            call.check()

    def matrices(self, i: int) -> ExpertMatrices:
        """The weights of expert `i` as the host holds them."""
        return self._experts.matrices(i)


class CudaOriginal(Backend):
    """Backend of base: everything is copied and waited for, the experts run through PyTorch on the host (Fiddler)."""

    def __init__(self, original: Backend) -> None:
        self._original = original

    def __call__(self, hidden: Tensor, routing: Routing) -> Tensor:
        """[T, H] on the device of `hidden` [T, H], in its type."""
        on_host = Routing(ids=routing.ids.cpu(), gates=routing.gates.cpu())
        return self._original(hidden.cpu(), on_host).to(hidden.device)

    def matrices(self, i: int) -> ExpertMatrices:
        """The weights of expert `i`."""
        return self._original.matrices(i)


class MaskedAttention:
    """Attention of a step as the network computes it, restricted by masks."""

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

    def __init__(
        self, recorder: CallRecorder, device: torch.device, stream: CurrentStream, capturing: CudaCapturing
    ) -> None:
        self.device, self.stream, self.attention = device, stream, MaskedAttention()
        self._recorder, self._capturing = recorder, capturing
        self._staging = Staging()
        self.originals: list[OriginalExperts] = []
        self._offloads: list[HostOffloadBackend] = []
        recorder.watch.clock = self._finished_ns

    @classmethod
    def open(cls, recorder: CallRecorder) -> CudaRole:
        """On PyTorch's current device. Raises OSError where no CUDA runtime is loaded."""
        return cls(recorder, torch.device("cuda", torch.cuda.current_device()), CurrentStream(), CudaCapturing())

    def backends(
        self, original: OriginalExperts | None, packed: FusedExperts | None, layer: int
    ) -> tuple[CudaOriginal | None, HostOffloadBackend | None]:
        """How the device calls the experts of decoder layer `layer`, which stay on the host."""
        base = offload = None
        if original is not None:
            self.originals.append(original)
            base = CudaOriginal(original)
        if packed is not None:
            offload = HostOffloadBackend(packed, self.stream, self._staging, self._recorder.watch, layer)
            self._offloads.append(offload)
        return base, offload

    def recording(self, counted: dict[str, int]) -> GraphRecording:
        """For a step to be captured; `counted["graph_replays"]` counts its replays."""
        return GraphRecording(self._recorder, self.stream, self._capturing, counted)

    def check(self) -> None:
        """Raise what went wrong in calls of the host since the last check; all that was started must be finished."""
        for offload in self._offloads:
            offload.check()

    def _finished_ns(self) -> int:
        """Time for a timeline: what was put into the stream before is done. The host's own threads go on meanwhile."""
        self.stream.finish()
        return perf_counter_ns()
