"""Calls of experts on the host in stream order: one packed copy each way, one wait per layer.

Letters: T tokens of a call, k experts of a token, H hidden width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ktbench.engine.backend import ExpertsBackend
from ktbench.engine.cuda.handover import Block, HostLink
from ktbench.engine.decode.lazy import Fetch
from ktbench.engine.decode.timeline import ModuleWatch, Where
from ktbench.engine.forms import ExpertMatrices
from ktbench.engine.routing import Routing

if TYPE_CHECKING:
    from ktbench._kernels import HandOver, HostCall
    from ktbench.engine.fused import FusedExperts

# Of what lies beside another thread's part of a block.
_LINE_BYTES = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Transfer:
    """What one call hands over, packed: ids, gates and hidden go down, outputs come up.

    `tokens` T, `hidden` H, `immediate` and `deferred` the experts of a token that this layer and the next one add.
    """

    tokens: int
    hidden: int
    immediate: int
    deferred: int

    @classmethod
    def of(cls, hidden: Tensor, immediate: Routing, deferred: Routing | None) -> Transfer:
        """Of `hidden` [T, H] and these experts."""
        width = 0 if deferred is None else deferred.ids.shape[1]
        return cls(tokens=hidden.shape[0], hidden=hidden.shape[1], immediate=immediate.ids.shape[1], deferred=width)

    @property
    def sent_bytes(self) -> int:
        """Bytes that go down."""
        return self.tokens * ((self.immediate + self.deferred) * (8 + 4) + self.hidden * 2)

    @property
    def nbytes(self) -> int:
        """Bytes of a block."""
        return self._output_at(2 if self.deferred else 1)

    def _output_at(self, number: int) -> int:
        return -(-self.sent_bytes // _LINE_BYTES) * _LINE_BYTES + number * self.tokens * self.hidden * 2

    @staticmethod
    def pack(hidden: Tensor, immediate: Routing, deferred: Routing | None) -> Tensor:
        """What goes down, in one tensor of bytes beside `hidden`; wider numbers come first, so that all are aligned."""
        routings = [immediate] if deferred is None else [immediate, deferred]
        parts = (*(routing.ids for routing in routings), *(routing.gates for routing in routings), hidden)
        return torch.cat([part.reshape(-1).view(torch.uint8) for part in parts])

    def unpacked(self, memory: Tensor) -> tuple[Tensor, Routing, Routing]:
        """`hidden` [T, H], the immediate and the deferred routing, as views of a block."""
        shapes = [(self.tokens, self.immediate), (self.tokens, self.deferred)]
        rows = [(shape, dtype) for dtype in (torch.int64, torch.float32) for shape in shapes]
        views, at = [], 0
        for shape, dtype in (*rows, ((self.tokens, self.hidden), torch.bfloat16)):
            size = shape[0] * shape[1] * dtype.itemsize
            views.append(memory[at : at + size].view(dtype).view(shape))
            at += size
        immediate_ids, deferred_ids, immediate_gates, deferred_gates, hidden = views
        return (
            hidden,
            Routing(ids=immediate_ids, gates=immediate_gates),
            Routing(ids=deferred_ids, gates=deferred_gates),
        )

    def output(self, memory: Tensor, number: int) -> Tensor:
        """[T, H] of the immediate (0) or deferred (1) experts, as a view of a block."""
        part = memory[self._output_at(number) : self._output_at(number + 1)]
        return part.view(torch.bfloat16).view(self.tokens, self.hidden)


class DeferredOutput:
    """What a layer began that the next one adds: on the host, where that hands over as well, else by fetching it."""

    def __init__(self, call: HostCall, output: Tensor, block: Block, fetch: Callable[[DeferredOutput], Tensor]) -> None:
        self.call, self.output, self.block, self._fetch = call, output, block, fetch

    def __call__(self) -> Tensor:
        """[T, H], by itself."""
        return self._fetch(self)


class HostOffloadBackend(ExpertsBackend):
    """ExpertsBackend of the experts of decoder layer `layer`: all tensors on `device`, the work on the host.

    A layer has one copy each way and one wait, in a stream beside the device's own work; submit and wait are in the
    order of that stream, so Python never blocks and a captured call needs none of it. The host adds the deferred
    experts to the immediate ones of the next layer (KTransformers, section 4.1).
    """

    def __init__(self, experts: FusedExperts, link: HostLink, watch: ModuleWatch, layer: int) -> None:
        self._experts, self._link, self._side, self._staging = experts, link, link.side, link.staging
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
        self, hidden: Tensor, immediate: Routing, deferred: Routing | None, previous: Fetch | None
    ) -> tuple[Fetch, Fetch | None]:
        if previous is not None and not isinstance(previous, DeferredOutput):
            return super().begin(hidden, immediate, deferred, previous)
        transfer = Transfer.of(hidden, immediate, deferred)
        # Allocated before the fork: whoever had this memory in the current stream is through with it by then.
        sent, output = transfer.pack(hidden, immediate, deferred), torch.empty_like(hidden)
        block = self._staging.take(transfer.nbytes)
        immediate_call, deferred_call = self._calls_on(block, transfer)
        handed = self._hand_over(immediate_call, deferred_call, None if previous is None else previous.call)
        self._side.fork()
        self._side.copy(block.memory[: sent.nbytes], sent)
        self._link.mechanism.begin(handed)
        pending = None
        if deferred_call is not None:
            alone = partial(self._fetch_deferred, device=hidden.device)
            pending = DeferredOutput(deferred_call, transfer.output(block.memory, 1), block, alone)
        waited = [sent]  # held until the current stream has joined: the copy may not have begun

        def fetch() -> Tensor:
            self._wait(handed, output, transfer.output(block.memory, 0), begun=True)
            waited.clear()
            for done in (block if pending is None else None, None if previous is None else previous.block):
                if done is not None:
                    self._staging.give(done)
            return output

        return fetch, pending

    def _fetch_deferred(self, deferred: DeferredOutput, device: torch.device) -> Tensor:
        output = torch.empty_like(deferred.output, device=device, pin_memory=False)
        self._side.fork()
        self._wait(self._hand_over(deferred.call, None, None), output, deferred.output, begun=False)
        self._staging.give(deferred.block)
        return output

    def _wait(self, handed: HandOver, output: Tensor, held: Tensor, *, begun: bool) -> None:
        self._watch.enter(self._where)
        self._link.mechanism.end(handed, begun=begun)
        self._side.copy(output, held)
        self._side.join()
        self._watch.leave()

    def _calls_on(self, block: Block, transfer: Transfer) -> tuple[HostCall, HostCall | None]:
        """Made once for each block and shape; those for other kernels, threads or mechanisms go before."""
        if self._settings != (settings := (self._experts.settings, self._link.mechanism)):
            self._forget()
            self._settings = settings
        if (block, transfer) not in self._calls:
            hidden, *routings = transfer.unpacked(block.memory)
            immediate, deferred = (
                self._experts.host_call(hidden, routing, transfer.output(block.memory, number))
                if routing.ids.numel()
                else None
                for number, routing in enumerate(routings)
            )
            assert immediate is not None
            self._calls[block, transfer] = immediate, deferred
        return self._calls[block, transfer]

    def _forget(self) -> None:
        """Let go of all calls once the stream is finished."""
        self._side.finish()
        for handed in self._handed.values():
            self._link.mechanism.forget(handed)
        self._calls.clear()
        self._handed.clear()

    def _hand_over(self, immediate: HostCall, deferred: HostCall | None, previous: HostCall | None) -> HandOver:
        if (immediate, deferred, previous) not in self._handed:
            self._handed[immediate, deferred, previous] = self._experts.hand_over(immediate, deferred, previous)
        return self._handed[immediate, deferred, previous]

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
        return self._experts.memory


class CudaOriginal(ExpertsBackend):
    """The backend of base: everything is copied and waited for, experts run through PyTorch on the host (Fiddler)."""

    def __init__(self, original: ExpertsBackend) -> None:
        self._original = original

    def __call__(self, hidden: Tensor, routing: Routing) -> Tensor:
        """[T, H] on the device of `hidden` [T, H], in its type."""
        on_host = Routing(ids=routing.ids.cpu(), gates=routing.gates.cpu())
        return self._original(hidden.cpu(), on_host).to(hidden.device)

    def matrices(self, i: int) -> ExpertMatrices:
        """The weights of expert `i`."""
        return self._original.matrices(i)
