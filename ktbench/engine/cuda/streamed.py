"""Layerwise prefill: packed experts of one layer after the other cross the link and are multiplied on the device.

A pass of many tokens selects nearly all experts, and then the device computes faster than it takes to copy them. Chunks
of experts are copied into two buffers by turns, beside the products on the other one, and are unpacked there.

Letters: T tokens of a call, k experts of a token, P pairs of the two, E experts, C experts of a chunk, H hidden width,
M rows and N columns of a matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor
from torch.nn.functional import linear

from ktbench.engine.backend import ExpertsBackend
from ktbench.engine.cuda.experts import grouped_mlp, grouped_product, groups_at_once
from ktbench.engine.cuda.packed import PackedLayout
from ktbench.engine.decode.lazy import Fetch
from ktbench.engine.forms import ExpertMatrices, Glu
from ktbench.engine.routing import Routing
from ktbench.spec.weights import STREAMED_CHUNK_BYTES

if TYPE_CHECKING:
    from ktbench.engine.cuda.offload import HostOffloadBackend
    from ktbench.engine.cuda.stream import Pins


class Side(Protocol):
    """A stream for copies beside the current one: see `ktbench.engine.cuda.stream.SideStream`."""

    def fork(self) -> None:
        """What comes after on the side waits for the current stream."""

    def join(self) -> None:
        """What comes after on the current stream waits for the side."""

    def copy(self, to: Tensor, source: Tensor) -> None:
        """`to` gets what `source` holds by then."""


class ExpertStream:
    """Two buffers on `device` that the layers of an engine share; `nbytes` counts what has passed through them.

    Passes of `from_tokens` tokens or more stream, None: none does; `crossover` is what was measured for `auto`.
    """

    def __init__(self, side: Side, pins: Pins, device: torch.device) -> None:
        self.device, self.nbytes = device, 0
        self.from_tokens: int | None = None
        self.crossover: int | None = None
        self._side, self._pins = side, pins
        self._buffers: list[Tensor] = []
        self._is_pinned = False

    def takes(self, tokens: int) -> bool:
        """Whether a pass of so many tokens streams."""
        return self.from_tokens is not None and tokens >= self.from_tokens

    def pin(self, layers: Sequence[Tensor]) -> None:
        """Have copies from the packed layers need no other on the host; done once, before anything is timed."""
        if not self._is_pinned:
            self._is_pinned = True
            for memory in layers:
                self._pins.add(memory)

    def release(self) -> None:
        """Nothing is pinned any more, and the device's memory is for others."""
        self._pins.release()
        self._is_pinned = False
        self._buffers.clear()

    def chunks(self, memory: Tensor, experts: Sequence[int]) -> Iterator[tuple[Sequence[int], Tensor]]:
        """Copies of these experts of `memory` [E, bytes], some at a time: numbers and packed bytes [C, bytes].

        What is put into the current stream while a chunk is there may use it; the next one is on its way meanwhile.
        """
        nbytes = memory.shape[1]
        most = max(1, STREAMED_CHUNK_BYTES // nbytes)
        buffers = [buffer[: most * nbytes].view(most, nbytes) for buffer in self._room(most * nbytes)]
        chunks = [experts[at : at + most] for at in range(0, len(experts), most)]
        if chunks:
            self._fill(buffers[0], memory, chunks[0])
        for number, chunk in enumerate(chunks):
            self._side.join()
            # The other buffer is free once what was put into the current stream so far is done: not yet this chunk's.
            if number + 1 < len(chunks):
                self._fill(buffers[(number + 1) % 2], memory, chunks[number + 1])
            yield chunk, buffers[number % 2][: len(chunk)]

    def _room(self, nbytes: int) -> list[Tensor]:
        if not self._buffers or self._buffers[0].nbytes < nbytes:
            self._buffers = [torch.empty(nbytes, dtype=torch.uint8, device=self.device) for _ in range(2)]
        return self._buffers

    def _fill(self, buffer: Tensor, memory: Tensor, experts: Sequence[int]) -> None:
        self._side.fork()
        for row, expert in zip(buffer, experts, strict=False):
            self._side.copy(row, memory[expert])
        self.nbytes += len(experts) * memory.shape[1]


class StreamedExperts(ExpertsBackend):
    """ExpertsBackend of one layer: the host runs calls of few tokens, the device those that its `stream` takes.

    `memory` is uint8 [E, bytes]: the experts as the host has packed them.
    """

    def __init__(self, host: HostOffloadBackend, glu: Glu, layout: PackedLayout, stream: ExpertStream) -> None:
        self._host, self.glu, self.layout, self.stream = host, glu, layout, stream
        self.memory = host.memory

    @property
    def hidden(self) -> int:
        """H."""
        return self.layout.hidden

    def __call__(self, hidden: Tensor, routing: Routing) -> Tensor:
        """[T, H] bf16 of `hidden` [T, H] bf16."""
        return self._stream_experts(hidden, routing) if self.stream.takes(len(hidden)) else self._host(hidden, routing)

    def start(self, hidden: Tensor, routing: Routing) -> Fetch:
        """Begins the same; what is given back waits for it."""
        return super().start(hidden, routing) if self.stream.takes(len(hidden)) else self._host.start(hidden, routing)

    def begin(
        self, hidden: Tensor, immediate: Routing, deferred: Routing | None, previous: Fetch | None
    ) -> tuple[Fetch, Fetch | None]:
        """See `ExpertsBackend`; of a pass all layers stream or none."""
        if self.stream.takes(len(hidden)):
            return super().begin(hidden, immediate, deferred, previous)
        return self._host.begin(hidden, immediate, deferred, previous)

    def _stream_experts(self, hidden: Tensor, routing: Routing) -> Tensor:
        """Waits for the device once: which experts have tokens decides what is copied."""
        ids, order = routing.ids.flatten().sort(stable=True)
        tokens, gates = order // routing.ids.shape[1], routing.gates.flatten()[order]
        counts = torch.bincount(ids + 1, minlength=len(self.memory) + 1).cpu().tolist()
        numbers = torch.cat([ids.new_zeros(1), (ids.diff() != 0).cumsum(0)])  # of the different ids
        at, number = counts[0], int(counts[0] > 0)
        output = torch.zeros_like(hidden, dtype=torch.float32)
        wanted = [expert for expert, count in enumerate(counts[1:]) if count]
        for experts, packed in self.stream.chunks(self.memory, wanted):
            rows = [counts[expert + 1] for expert in experts]
            here = slice(at, at + sum(rows))
            outputs = self._products(hidden[tokens[here]], rows, numbers[here] - number, packed)
            output.index_add_(0, tokens[here], outputs * gates[here, None])
            at, number = here.stop, number + len(rows)
        return output.to(hidden.dtype)

    def _products(self, x: Tensor, rows: Sequence[int], own: Tensor, packed: Tensor) -> Tensor:
        """[P, H] float32 of `x` [P, H], of which each expert of a chunk has so many `rows`, by its number `own` [P]."""
        product = grouped_product(own, len(rows)) if groups_at_once(x.device) else partial(_one_by_one, rows)
        return grouped_mlp(product, x, own, self.layout.unpack(packed), self.glu)

    def matrices(self, i: int) -> ExpertMatrices:
        """The weights of expert `i` as the host holds them."""
        return self._host.matrices(i)


def _one_by_one(rows: Sequence[int], x: Tensor, weights: Tensor) -> Tensor:
    """[P, M] of `x` [P, N] and `weights` [C, M, N], of which each has so many `rows`."""
    parts = torch.split(x, list(rows))
    return torch.cat([linear(part, weight) for part, weight in zip(parts, weights, strict=True)])


_FEW_TOKENS, _MANY_TOKENS = 256, 1024


def crossover(experts: StreamedExperts, top_k: int, finish: Callable[[], None]) -> int:
    """From how many tokens on streaming a layer takes less time than the host does, by the times of three calls.

    The host takes a + b·T, the stream the same for all T that reach every expert.
    """
    count, stream = len(experts.memory), experts.stream

    def seconds(tokens: int, from_tokens: int | None) -> float:
        draw = torch.Generator().manual_seed(tokens)
        x = torch.randn(tokens, experts.hidden, generator=draw).to(torch.bfloat16).to(stream.device)
        ids = torch.rand(tokens, count, generator=draw).argsort(dim=1)[:, :top_k].to(stream.device)
        routing = Routing(ids=ids, gates=torch.full(ids.shape, 1 / top_k, device=stream.device))
        previous, stream.from_tokens = stream.from_tokens, from_tokens
        try:
            for _ in range(2):  # the first call makes room
                finish()
                began = perf_counter()
                experts.start(x, routing)()
                finish()
                taken = perf_counter() - began
        finally:
            stream.from_tokens = previous
        return taken

    few, many, streamed = seconds(_FEW_TOKENS, None), seconds(_MANY_TOKENS, None), seconds(_MANY_TOKENS, 1)
    return streaming_threshold(few, many, streamed)


def streaming_threshold(few_s: float, many_s: float, streamed_s: float) -> int:
    """Tokens from which on the line through the host's two times is above the stream's, at least 1."""
    each = max((many_s - few_s) / (_MANY_TOKENS - _FEW_TOKENS), 1e-9)
    return max(1, round((streamed_s - few_s) / each + _FEW_TOKENS))
