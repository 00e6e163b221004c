"""Layerwise prefill: packed experts of one layer after the other cross the link and are multiplied on the device.

A pass of many tokens selects nearly all experts, and then the device computes faster than it takes to copy them. Chunks
of experts are copied into two buffers by turns, beside the products on the other one, and are unpacked there.

Letters: T tokens of a call, k experts of a token, E experts, C experts of a chunk, H hidden width, I expert width,
M rows and N columns of a matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor
from torch.nn.functional import linear

from ktbench.engine.cuda.experts import grouped, groups_at_once
from ktbench.engine.decode.lazy import Fetch
from ktbench.engine.experts import Backend
from ktbench.engine.forms import ExpertMatrices, Glu
from ktbench.engine.routing import Routing
from ktbench.spec.weights import DEVICE_UNPACKS, FORMATS, STREAMED_CHUNK_BYTES, Precision

if TYPE_CHECKING:
    from ktbench.engine.cuda.role import HostOffloadBackend
    from ktbench.engine.cuda.stream import Pins
    from ktbench.engine.fused import FusedExperts

# The packed layout (kernels/core/layout.h): rows of a strip, bytes of its scales and of a line, groups of a record.
_ROWS, _HEAD_BYTES, _LINE_BYTES, _RECORD_GROUPS = 16, 128, 64, 4


def _bf16(strips: Tensor) -> Tensor:
    """Lines [row][2 k]."""
    return _cut(strips.view(torch.bfloat16), -1, _ROWS, 2).transpose(-3, -2).flatten(-2)


def _int8(strips: Tensor) -> Tensor:
    """A head of scales and lines [row][4 k]."""
    lines = _cut(strips[..., _HEAD_BYTES:].view(torch.int8), -1, _ROWS, 4)
    return (lines.transpose(-3, -2).flatten(-2) * _row_scales(strips)).to(torch.bfloat16)


def _int4(strips: Tensor, depth: int, group: int) -> Tensor:
    """A head of scales and records: a line of factors [group][row], lines [row][4 bytes] of k and k + 4."""
    body, group_bytes = strips[..., _HEAD_BYTES:], group * _ROWS // 2
    whole, rest = divmod(depth // group, _RECORD_GROUPS)
    cut = whole * (_LINE_BYTES + _RECORD_GROUPS * group_bytes)
    parts = [_cut(body[..., :cut], whole, -1)] if whole else []
    if rest:
        parts.append(body[..., cut : cut + _LINE_BYTES + rest * group_bytes].unsqueeze(-2))
    numbers = [_int4_records(part, group) for part in parts]
    return (torch.cat(numbers, dim=-1) * _row_scales(strips)).to(torch.bfloat16)


def _int4_records(records: Tensor, group: int) -> Tensor:
    """[..., 16, numbers] float32 of records [..., records, bytes], without the scales of rows."""
    groups = (records.shape[-1] - _LINE_BYTES) * 2 // (group * _ROWS)
    factors = _cut(records[..., : groups * _ROWS].view(torch.int8), groups, _ROWS)
    pairs = _cut(records[..., _LINE_BYTES:].view(torch.int8), groups, group // 8, _ROWS, 4)
    low, high = (pairs << 4) >> 4, pairs >> 4
    lines = torch.stack([low, high], dim=-2).flatten(-2)  # [..., records, groups, lines, 16, 8]
    scaled = lines.transpose(-3, -2).flatten(-2) * factors[..., None].float()
    return scaled.movedim(-2, -4).flatten(-3)


def _cut(x: Tensor, *sizes: int) -> Tensor:
    """The last dimension as several."""
    return x.reshape(*x.shape[:-1], *sizes)


def _row_scales(strips: Tensor) -> Tensor:
    return strips[..., : _ROWS * 4].view(torch.float32)[..., None]


def unpack(strips: Tensor, depth: int, precision: Precision) -> Tensor:
    """bf16 [..., 16, depth] of strips uint8 [..., bytes] in one of `DEVICE_UNPACKS`, `depth` being the padded one."""
    if precision == "bf16":
        return _bf16(strips)
    return _int8(strips) if precision == "int8" else _int4(strips, depth, FORMATS[precision].group)


@dataclass(frozen=True, kw_only=True, slots=True)
class PackedLayout:
    """Where the parts of a packed expert lie: gate and up strips by turns, down strips, biases where there are any.

    Raises ValueError for a format that a device does not unpack.
    """

    hidden: int
    ffn: int
    precision: Precision
    down_precision: Precision
    biases: bool = False

    def __post_init__(self) -> None:
        for precision in (self.precision, self.down_precision):
            if precision not in DEVICE_UNPACKS:
                raise ValueError(f"precision={precision}: a device unpacks {', '.join(DEVICE_UNPACKS)}")

    def gate_up(self, experts: Tensor) -> Tensor:
        """[C, 2 I, H] bf16 of packed experts uint8 [C, bytes]: gate, then up."""
        depth = _depth(self.hidden, self.precision)
        strips = _cut(experts[:, : self._down_at], _strips(self.ffn), 2, -1)
        numbers = unpack(strips, depth, self.precision).transpose(1, 2).flatten(2, 3)
        return numbers[:, :, : self.ffn, : self.hidden].flatten(1, 2)

    def down(self, experts: Tensor) -> Tensor:
        """[C, H, I] bf16 of packed experts uint8 [C, bytes]."""
        depth = _depth(self.ffn, self.down_precision)
        strips = _cut(experts[:, self._down_at : self._biases_at], _strips(self.hidden), -1)
        numbers = unpack(strips, depth, self.down_precision).flatten(1, 2)
        return numbers[:, : self.hidden, : self.ffn].contiguous()

    def bias(self, experts: Tensor) -> tuple[Tensor, Tensor]:
        """Of gate and up [C, 2 I], and of down [C, H], float32."""
        numbers, rows = experts[:, self._biases_at :].contiguous().view(torch.float32), _ROWS * _strips(self.ffn)
        gate, up, down = numbers[:, :rows], numbers[:, rows : 2 * rows], numbers[:, 2 * rows :]
        return torch.cat([gate[:, : self.ffn], up[:, : self.ffn]], dim=1), down[:, : self.hidden]

    @property
    def _down_at(self) -> int:
        return 2 * _strips(self.ffn) * _strip_bytes(_depth(self.hidden, self.precision), self.precision)

    @property
    def _biases_at(self) -> int:
        depth = _depth(self.ffn, self.down_precision)
        return self._down_at + _strips(self.hidden) * _strip_bytes(depth, self.down_precision)


def _strips(rows: int) -> int:
    """Rows are padded to an even number of strips."""
    return -(-rows // (2 * _ROWS)) * 2


def _depth(columns: int, precision: Precision) -> int:
    multiple = 32 if precision == "bf16" else max(64, FORMATS[precision].group)
    return -(-columns // multiple) * multiple


def _strip_bytes(depth: int, precision: Precision) -> int:
    if precision == "bf16":
        return _ROWS * 2 * depth
    if precision == "int8":
        return _HEAD_BYTES + _ROWS * depth
    records = -(-depth // (_RECORD_GROUPS * FORMATS[precision].group))
    return _HEAD_BYTES + records * _LINE_BYTES + _ROWS * depth // 2


def packed_layout(experts: FusedExperts) -> PackedLayout | None:
    """That of the experts of a layer; None where a device does not unpack them, or where they lie in several places."""
    packed = experts.packed
    asked = packed.precision, packed.down_precision
    known = [precision for one in asked for precision in DEVICE_UNPACKS if precision == one]
    if packed.domains > 1 or len(known) < len(asked):
        return None
    form = experts.form
    return PackedLayout(
        hidden=form.hidden, ffn=form.ffn, precision=known[0], down_precision=known[1], biases=form.biases
    )


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


class StreamedExperts(Backend):
    """Backend of one layer: the host runs calls of few tokens, the device those that its `stream` takes.

    `memory` is uint8 [E, bytes]: the experts as the host has packed them.
    """

    def __init__(self, host: HostOffloadBackend, glu: Glu, layout: PackedLayout, stream: ExpertStream) -> None:
        self._host, self._glu, self._layout, self.stream = host, glu, layout, stream
        self.memory = host.memory

    @property
    def hidden(self) -> int:
        """H."""
        return self._layout.hidden

    def __call__(self, hidden: Tensor, routing: Routing) -> Tensor:
        """[T, H] bf16 of `hidden` [T, H] bf16."""
        return self._streamed(hidden, routing) if self.stream.takes(len(hidden)) else self._host(hidden, routing)

    def start(self, hidden: Tensor, routing: Routing) -> Fetch:
        """Begins the same; what is given back waits for it."""
        return super().start(hidden, routing) if self.stream.takes(len(hidden)) else self._host.start(hidden, routing)

    def begin(
        self, hidden: Tensor, due: Routing, late: Routing | None, before: Fetch | None
    ) -> tuple[Fetch, Fetch | None]:
        """See `Backend`; of a pass all layers stream or none."""
        if self.stream.takes(len(hidden)):
            return super().begin(hidden, due, late, before)
        return self._host.begin(hidden, due, late, before)

    def _streamed(self, hidden: Tensor, routing: Routing) -> Tensor:
        """Waits for the device once: which experts have tokens decides what is copied."""
        ids, order = routing.ids.flatten().sort(stable=True)
        tokens, gates = order // routing.ids.shape[1], routing.gates.flatten()[order]
        counts = torch.bincount(ids + 1, minlength=len(self.memory) + 1).cpu().tolist()
        at, output = counts[0], torch.zeros_like(hidden, dtype=torch.float32)
        wanted = [expert for expert, count in enumerate(counts[1:]) if count]
        for experts, packed in self.stream.chunks(self.memory, wanted):
            rows = [counts[expert + 1] for expert in experts]
            here = slice(at, at + sum(rows))
            outputs = self._products(hidden[tokens[here]], rows, packed)
            output.index_add_(0, tokens[here], outputs * gates[here, None])
            at = here.stop
        return output.to(hidden.dtype)

    def _products(self, x: Tensor, rows: Sequence[int], packed: Tensor) -> Tensor:
        """[P, H] float32 of `x` [P, H], of which each expert of a chunk has so many `rows`."""
        slots = torch.arange(len(rows)).repeat_interleave(torch.tensor(rows)).to(x.device)
        product = grouped(slots, len(rows)) if groups_at_once(x.device) else partial(_one_by_one, rows)
        gate_up = product(x, self._layout.gate_up(packed)).float()
        biases = self._layout.bias(packed) if self._layout.biases else None
        if biases is not None:
            gate_up += biases[0][slots]
        outputs = product(self._glu(*gate_up.chunk(2, dim=1)).to(x.dtype), self._layout.down(packed)).float()
        return outputs if biases is None else outputs + biases[1][slots]

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
        before, stream.from_tokens = stream.from_tokens, from_tokens
        try:
            for _ in range(2):  # the first call makes room
                finish()
                began = perf_counter()
                experts.start(x, routing)()
                finish()
                taken = perf_counter() - began
        finally:
            stream.from_tokens = before
        return taken

    few, many, streamed = seconds(_FEW_TOKENS, None), seconds(_MANY_TOKENS, None), seconds(_MANY_TOKENS, 1)
    return first_above(few, many, streamed)


def first_above(few_s: float, many_s: float, streamed_s: float) -> int:
    """Tokens from which on the line through the host's two times is above the stream's, at least 1."""
    each = max((many_s - few_s) / (_MANY_TOKENS - _FEW_TOKENS), 1e-9)
    return max(1, round((streamed_s - few_s) / each + _FEW_TOKENS))
