"""The CUDA device role: calls of experts on the host in stream order, and captured steps.

Letters: T tokens of a call, k experts of a token, H hidden width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from time import perf_counter_ns
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ktbench.engine.cuda.attention import AttentionWatch, MaskedAttention, set_up_attention
from ktbench.engine.cuda.graph import CudaCapturing, GraphRecording
from ktbench.engine.cuda.packed import packed_layout
from ktbench.engine.cuda.residents import Bf16Residents, PackedResidents, UnpackedResidents
from ktbench.engine.cuda.stream import CurrentStream, Pins, SideStream, StepClock, Streams, cuda_runtime
from ktbench.engine.cuda.streamed import ExpertStream, StreamedExperts, crossover
from ktbench.engine.decode.lazy import Fetch
from ktbench.engine.decode.program import CallRecorder
from ktbench.engine.decode.timeline import ModuleWatch, Where
from ktbench.engine.device_placement import DeviceExperts
from ktbench.engine.experts import Backend, ExpertsOperator, OriginalExperts
from ktbench.engine.forms import ExpertMatrices
from ktbench.engine.protocol import Unsupported
from ktbench.engine.routing import Routing

if TYPE_CHECKING:
    from ktbench._kernels import HandOver, HostCall
    from ktbench.engine.fused import FusedExperts

# Of a block, and of what lies beside another thread's part of it.
_LEAST_BYTES, _LINE_BYTES = 4096, 64


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Memory of the host for calls in flight, uint8 and pinned where a CUDA device copies to it."""

    number: int
    memory: Tensor


class Staging:
    """Blocks for the calls of all layers, one for each call that is in flight at the same time.

    In the order of one stream a block is free again once its outputs have been copied. The lowest free number is taken,
    so every pass of the same shapes uses the same memory. Sizes are powers of two, so that few serve all shapes;
    nothing is given back to the system: a stream or a graph that holds addresses may yet run.
    """

    def __init__(self, *, pinned: bool) -> None:
        self._pinned = pinned
        self._free: dict[int, list[Block]] = {}
        self._made = 0

    def take(self, nbytes: int) -> Block:
        """A block of so many bytes or more."""
        size = max(_LEAST_BYTES, 1 << (nbytes - 1).bit_length())
        free = self._free.setdefault(size, [])
        if not free:
            self._made += 1
            return Block(self._made, torch.empty(size, dtype=torch.uint8, pin_memory=self._pinned))
        lowest = min(free, key=lambda block: block.number)
        free.remove(lowest)
        return lowest

    def give(self, block: Block) -> None:
        """Whatever is put into the stream from now on may use it."""
        self._free[block.memory.nbytes].append(block)


@dataclass(frozen=True, kw_only=True, slots=True)
class Transfer:
    """What one call hands over, packed: ids, gates and hidden go down, outputs come up.

    `tokens` T, `hidden` H, `due` and `late` the experts of a token that this layer and the next one add.
    """

    tokens: int
    hidden: int
    due: int
    late: int

    @classmethod
    def of(cls, hidden: Tensor, due: Routing, late: Routing | None) -> Transfer:
        """Of `hidden` [T, H] and these experts."""
        width = 0 if late is None else late.ids.shape[1]
        return cls(tokens=hidden.shape[0], hidden=hidden.shape[1], due=due.ids.shape[1], late=width)

    @property
    def sent_bytes(self) -> int:
        """Bytes that go down."""
        return self.tokens * ((self.due + self.late) * (8 + 4) + self.hidden * 2)

    @property
    def nbytes(self) -> int:
        """Bytes of a block."""
        return self._output_at(2 if self.late else 1)

    def _output_at(self, number: int) -> int:
        return -(-self.sent_bytes // _LINE_BYTES) * _LINE_BYTES + number * self.tokens * self.hidden * 2

    @staticmethod
    def pack(hidden: Tensor, due: Routing, late: Routing | None) -> Tensor:
        """What goes down, in one tensor of bytes beside `hidden`; wider numbers come first, so that all are aligned."""
        routings = [due] if late is None else [due, late]
        parts = (*(one.ids for one in routings), *(one.gates for one in routings), hidden)
        return torch.cat([part.reshape(-1).view(torch.uint8) for part in parts])

    def unpacked(self, memory: Tensor) -> tuple[Tensor, Routing, Routing]:
        """`hidden` [T, H], what is due and what comes late, as views of a block."""
        shapes = [(self.tokens, self.due), (self.tokens, self.late)]
        rows = [(shape, dtype) for dtype in (torch.int64, torch.float32) for shape in shapes]
        views, at = [], 0
        for shape, dtype in (*rows, ((self.tokens, self.hidden), torch.bfloat16)):
            size = shape[0] * shape[1] * dtype.itemsize
            views.append(memory[at : at + size].view(dtype).view(shape))
            at += size
        due_ids, late_ids, due_gates, late_gates, hidden = views
        return hidden, Routing(ids=due_ids, gates=due_gates), Routing(ids=late_ids, gates=late_gates)

    def output(self, memory: Tensor, number: int) -> Tensor:
        """[T, H] of what is due (0) or comes late (1), as a view of a block."""
        part = memory[self._output_at(number) : self._output_at(number + 1)]
        return part.view(torch.bfloat16).view(self.tokens, self.hidden)


class Late:
    """What a layer began that the next one adds: on the host, where that hands over as well, else by fetching it."""

    def __init__(self, call: HostCall, output: Tensor, block: Block, fetch: Callable[[Late], Tensor]) -> None:
        self.call, self.output, self.block, self._fetch = call, output, block, fetch

    def __call__(self) -> Tensor:
        """[T, H], by itself."""
        return self._fetch(self)


class HostOffloadBackend(Backend):
    """Backend of the experts of decoder layer `layer`: all tensors on `device`, the work on the host.

    A layer has one copy each way and one wait, in a stream beside the device's own work; submit and wait are host
    functions there, so Python never blocks and a captured call needs none of it. What comes late is added by the host
    to what is due in the next layer (KTransformers, section 4.1).
    """

    def __init__(
        self, experts: FusedExperts, side: SideStream, staging: Staging, watch: ModuleWatch, layer: int
    ) -> None:
        self._experts, self._side, self._staging = experts, side, staging
        self._watch, self._where = watch, Where("wait", layer)
        self._settings: object = None
        self._calls: dict[tuple[Block, Transfer], tuple[HostCall, HostCall | None]] = {}
        self._handed: dict[tuple[HostCall, HostCall | None, HostCall | None], HandOver] = {}

    def __call__(self, hidden: Tensor, routing: Routing) -> Tensor:
        """[T, H] bf16 of `hidden` [T, H] bf16."""
        return self.start(hidden, routing)()

    def start(self, hidden: Tensor, routing: Routing) -> Fetch:
        """Begins the same; what is given back waits for it."""
        return self.begin(hidden, routing, None, None)[0]

    def begin(
        self, hidden: Tensor, due: Routing, late: Routing | None, before: Fetch | None
    ) -> tuple[Fetch, Fetch | None]:
        """See `Backend`."""
        if before is not None and not isinstance(before, Late):
            return super().begin(hidden, due, late, before)
        transfer = Transfer.of(hidden, due, late)
        # Allocated before the fork: whoever had this memory in the current stream is through with it by then.
        sent, output = transfer.pack(hidden, due, late), torch.empty_like(hidden)
        block = self._staging.take(transfer.nbytes)
        due_call, late_call = self._calls_on(block, transfer)
        handed = self._hand_over(due_call, late_call, None if before is None else before.call)
        self._side.fork()
        self._side.copy(block.memory[: sent.nbytes], sent)
        self._side.call(handed.submit, handed.data)
        following = None
        if late_call is not None:
            alone = partial(self._fetch_late, device=hidden.device)
            following = Late(late_call, transfer.output(block.memory, 1), block, alone)
        waited = [sent]  # held until the current stream has joined: the copy may not have begun

        def fetch() -> Tensor:
            self._wait(handed, output, transfer.output(block.memory, 0))
            waited.clear()
            for done in (block if following is None else None, None if before is None else before.block):
                if done is not None:
                    self._staging.give(done)
            return output

        return fetch, following

    def _fetch_late(self, late: Late, device: torch.device) -> Tensor:
        output = torch.empty_like(late.output, device=device, pin_memory=False)
        self._side.fork()
        self._wait(self._hand_over(late.call, None, None), output, late.output)
        self._staging.give(late.block)
        return output

    def _wait(self, handed: HandOver, output: Tensor, held: Tensor) -> None:
        self._watch.enter(self._where)
        self._side.call(handed.wait, handed.data)
        self._side.copy(output, held)
        self._side.join()
        self._watch.leave()

    def _calls_on(self, block: Block, transfer: Transfer) -> tuple[HostCall, HostCall | None]:
        """Made once for each block and shape; those for other kernels or threads go once the stream is finished."""
        if self._settings != self._experts.settings:
            self._side.finish()
            self._calls.clear()
            self._handed.clear()
            self._settings = self._experts.settings
        if (block, transfer) not in self._calls:
            hidden, *routings = transfer.unpacked(block.memory)
            due, late = (
                self._experts.host_call(hidden, routing, transfer.output(block.memory, number))
                if routing.ids.numel()
                else None
                for number, routing in enumerate(routings)
            )
            assert due is not None
            self._calls[block, transfer] = due, late
        return self._calls[block, transfer]

    def _hand_over(self, due: HostCall, late: HostCall | None, before: HostCall | None) -> HandOver:
        if (due, late, before) not in self._handed:
            self._handed[due, late, before] = self._experts.hand_over(due, late, before)
        return self._handed[due, late, before]

    def check(self) -> None:
        """Raise what went wrong in a call since the last check: C functions have no way to."""
        for calls in self._calls.values():
            for call in calls:
                if call is not None:
                    call.check()

    def matrices(self, i: int) -> ExpertMatrices:
        """The weights of expert `i` as the host holds them."""
        return self._experts.matrices(i)

    @property
    def memory(self) -> Tensor:
        """See `FusedExperts`."""
        return self._experts.memory


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


class CudaRole:
    """One for all layers of an engine, which lie on `device`: their work goes through the current one of `streams`.

    `originals` are the experts that base runs on the host, layer after layer.
    """

    def __init__(
        self,
        recorder: CallRecorder,
        device: torch.device,
        streams: Streams,
        capturing: CudaCapturing,
        pins: Pins,
    ) -> None:
        self.device, self.stream, self.attention = device, streams.current, MaskedAttention()
        self.clock = StepClock(streams.current)
        self._pins, self._expert_stream = pins, ExpertStream(streams.side, pins, device)
        self._recorder, self._streams, self._capturing = recorder, streams, capturing
        self._staging = Staging(pinned=device.type == "cuda")
        self.attention_watch = AttentionWatch()
        self.originals: list[OriginalExperts] = []
        self._offloads: list[HostOffloadBackend] = []
        self._streamed: list[StreamedExperts] = []
        recorder.watch.clock = self._finished_ns

    @classmethod
    def open(cls, recorder: CallRecorder) -> CudaRole:
        """On PyTorch's current device. Raises OSError where no CUDA runtime is loaded.

        CUDA starts its threads here, where the calling one may run.
        """
        device = torch.device("cuda", torch.cuda.current_device())
        streams = Streams(current=CurrentStream(), side=SideStream(), transfers=SideStream())
        streams.side.start()
        set_up_attention()
        return cls(recorder, device, streams, CudaCapturing(), Pins(cuda_runtime()))

    def backends(
        self, original: OriginalExperts | None, packed: FusedExperts | None, layer: int
    ) -> tuple[CudaOriginal | None, HostOffloadBackend | StreamedExperts | None]:
        """How the device calls the experts of decoder layer `layer`, which stay on the host."""
        base = fused = None
        if original is not None:
            self.originals.append(original)
            base = CudaOriginal(original)
        if packed is not None:
            offload = HostOffloadBackend(packed, self._streams.side, self._staging, self._recorder.watch, layer)
            self._offloads.append(offload)
            fused = self._with_stream(offload, packed)
        return base, fused

    def _with_stream(self, offload: HostOffloadBackend, packed: FusedExperts) -> HostOffloadBackend | StreamedExperts:
        """Where the device can unpack the experts, calls of many tokens may stream."""
        layout = packed_layout(packed)
        if layout is None:
            return offload
        self._streamed.append(StreamedExperts(offload, packed.form.glu, layout, self._expert_stream))
        return self._streamed[-1]

    def stream_from(self, tokens: int | Literal["auto"], top_k: int) -> str:
        """From now on passes of so many tokens stream, 0: none does; gives a note on what `auto` chose.

        Raises Unsupported where the packed experts do not stream.
        """
        stream, note = self._expert_stream, ""
        if tokens and len(self._streamed) < len(self._offloads):
            raise Unsupported("engine.device_prefill_tokens: a device does not unpack these experts")
        if tokens:
            self._pin_experts()
        if tokens == "auto":
            tokens = stream.crossover or crossover(self._streamed[0], top_k, self.stream.finish)
            stream.crossover = tokens
            note = f"device_prefill_tokens=auto chose {tokens:,} tokens"
        stream.from_tokens = tokens or None
        return note

    def _pin_experts(self) -> None:
        self._expert_stream.pin([experts.memory for experts in self._streamed])

    def residents(self, operator: ExpertsOperator, at_device: NDArray[np.bool_], *, move: bool) -> DeviceExperts:
        """The experts of a layer that are marked in `at_device` [E], on the device; `move`: others take their place."""
        host = operator.fused
        if not isinstance(host, StreamedExperts):
            return UnpackedResidents(operator.backend.matrices, at_device, self.device)
        if move:
            self._pin_experts()
        kind = Bf16Residents if host.layout.is_bf16 else PackedResidents
        return kind(host, at_device, self.device, self._streams.transfers)

    def streams(self, tokens: int) -> bool:
        """Whether the experts of a pass of so many tokens stream."""
        return self._expert_stream.takes(tokens)

    @property
    def streamed_bytes(self) -> int:
        """Bytes of packed experts that went to the device so far."""
        return self._expert_stream.nbytes

    def notes(self) -> tuple[str, ...]:
        """Remarks for the record: kernels that attention ran on under observation, and what is copied slower."""
        kernels = ", ".join(self.attention_watch.chosen)
        return tuple(filter(None, (kernels and f"attention ran on {kernels}", self._pins.note)))

    def release(self) -> None:
        """Memory of the host is no longer pinned, as it must be before it is freed; nothing may be on its way."""
        self._expert_stream.release()

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
