"""Experts on the device as the host packs them: where their parts lie, and how they become bf16 there.

Letters: P pairs of a token and an expert, E experts of a layer, S slots, C experts at a time, H hidden width, I expert
width.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ktbench.engine.cuda.experts import ExpertSlots, ExpertWeights, gathers, grouped_by, grouped_mlp, groups_at_once
from ktbench.engine.forms import Biases, ExpertMatrices, Glu
from ktbench.spec.weights import (
    DEVICE_UNPACKS,
    FORMATS,
    PAIRS_AT_ONCE,
    STREAMED_CHUNK_BYTES,
    STRIP_ROWS,
    Precision,
)

if TYPE_CHECKING:
    from ktbench.engine.fused import FusedExperts

_LINE_BYTES = 64  # of the packed layout (kernels/core/layout.h)


def unpack(strips: Tensor, out: Tensor, precision: Precision) -> None:
    """Strips uint8 [..., bytes] in one of `DEVICE_UNPACKS` become `out` bf16 [..., 16, padded depth].

    Products of numbers and scales are float32 and rounded once, as where the host gives weights back. An operation
    reads and writes as little as possible, since all of this is bound by the device's memory.
    """
    if precision == "bf16":
        _lines(out, 2).copy_(_cut(strips.view(torch.bfloat16), -1, STRIP_ROWS, 2))
    elif precision == "int8":
        numbers = _cut(_body(strips, precision).view(torch.int8), -1, STRIP_ROWS, 4)
        torch.mul(numbers, _row_scales(strips)[..., None, :, None], out=_lines(out, 4))
    elif precision == "fp8":
        _unpack_fp8(strips, out)
    else:
        _unpack_int4(strips, out, precision)


def _unpack_int4(strips: Tensor, out: Tensor, precision: Precision) -> None:
    """Records: a line of int8 factors [group][row], then lines [row][4 bytes] of k and k + 4.

    Both halves of a byte are taken 16 times as large, for which one operation each is enough; a sixteenth of the row's
    scale takes that back exactly.
    """
    group = FORMATS[precision].group
    scales = _row_scales(strips)[..., None, None, None, :, None] / 16
    for records, columns in _records(strips, out, precision):
        groups = columns.shape[-1] // group // records.shape[-2]
        factors = _cut(records[..., : groups * STRIP_ROWS].view(torch.int8), groups, 1, STRIP_ROWS, 1).short()
        pairs = _cut(records[..., _LINE_BYTES:].view(torch.int8), groups, group // 8, STRIP_ROWS, 4)
        to = _cut(columns, -1, groups, group // 8, 2, 4).movedim(-6, -3)
        for half, numbers in enumerate((pairs << 4, pairs & -16)):
            torch.mul(numbers * factors, scales, out=to.select(-2, half))


def _unpack_fp8(strips: Tensor, out: Tensor) -> None:
    """Records: a line of a float for each group, then lines [4 rows][2 pairs of k][row][k] of e4m3.

    Either the row's scale or the group's is one (kernels/moe/float8.h), so that their product is exact.
    """
    rows = _row_scales(strips)[..., None, None, :]
    for records, columns in _records(strips, out, "fp8"):
        groups = columns.shape[-1] // FORMATS["fp8"].group // records.shape[-2]
        scales = records[..., : groups * 4].view(torch.float32)[..., None] * rows
        codes = _cut(records[..., _LINE_BYTES:].view(torch.float8_e4m3fn), groups, -1, 4, 2, 4, 2)
        fours = columns.view(*columns.shape[:-2], 4, 4, columns.shape[-1])
        to = _cut(fours, -1, groups, codes.shape[-5], 2, 2).movedim((-7, -6), (-4, -2))
        torch.mul(codes.bfloat16(), _cut(scales, 4, 4)[..., None, :, None, :, None], out=to)


def _records(strips: Tensor, out: Tensor, precision: Precision) -> Iterator[tuple[Tensor, Tensor]]:
    """Records [..., records, bytes] of equally many groups, and the columns of `out` that they are for.

    Only the last record of a strip may have fewer groups than the others.
    """
    body, most, group = _body(strips, precision), _record_groups(precision), FORMATS[precision].group
    group_bytes = STRIP_ROWS * group * FORMATS[precision].bits // 8
    whole, rest = divmod(out.shape[-1] // group, most)
    at = whole * (_LINE_BYTES + most * group_bytes)
    if whole:
        yield _cut(body[..., :at], whole, -1), out[..., : whole * most * group]
    if rest:
        yield body[..., at : at + _LINE_BYTES + rest * group_bytes].unsqueeze(-2), out[..., whole * most * group :]


def _head_bytes(precision: Precision) -> int:
    """Bytes of what heads a strip."""
    return FORMATS[precision].row_bytes * STRIP_ROWS


def _record_groups(precision: Precision) -> int:
    """Groups of a record, which begins with a line of their scales."""
    row = FORMATS[precision]
    return _LINE_BYTES // (STRIP_ROWS // row.scale_rows * row.scale_bytes)


def _body(strips: Tensor, precision: Precision) -> Tensor:
    return strips[..., _head_bytes(precision) :]


def _row_scales(strips: Tensor) -> Tensor:
    """[..., 16] float32."""
    return strips[..., : STRIP_ROWS * 4].view(torch.float32)


def _lines(out: Tensor, numbers: int) -> Tensor:
    """[..., lines, 16, numbers] of `out` [..., 16, depth]: where the numbers of a line go."""
    return _cut(out, -1, numbers).transpose(-3, -2)


def _cut(x: Tensor, *sizes: int) -> Tensor:
    """The last dimension as several."""
    return x.view(*x.shape[:-1], *sizes)


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

    @property
    def is_bf16(self) -> bool:
        """Whether all matrices are bf16, which takes as much room unpacked."""
        return self.precision == self.down_precision == "bf16"

    def unpack(self, experts: Tensor) -> ExpertWeights:
        """Of packed experts uint8 [C, bytes], where those are."""
        return ExpertWeights(self.gate_up(experts), self.down(experts), self.bias(experts) if self.biases else None)

    def matrices(self, expert: Tensor, glu: Glu) -> ExpertMatrices:
        """The same of one packed expert uint8 [bytes]."""
        gate_up, down, biases = self.unpack(expert[None])
        gate, up = gate_up[0].chunk(2)
        if biases is None:
            return ExpertMatrices(gate=gate, up=up, down=down[0], glu=glu)
        gate_bias, up_bias = biases[0][0].chunk(2)
        named = Biases(gate_bias, up_bias, biases[1][0])
        return ExpertMatrices(gate=gate, up=up, down=down[0], biases=named, glu=glu)

    def gate_up(self, experts: Tensor) -> Tensor:
        """[C, 2 I, H] bf16 of packed experts uint8 [C, bytes]: gate, then up."""
        strips = _cut(experts[:, : self._down_at], _strips(self.ffn), 2, -1)
        depth = _depth(self.hidden, self.precision)
        numbers = strips.new_empty(len(experts), 2, _strips(self.ffn), STRIP_ROWS, depth, dtype=torch.bfloat16)
        unpack(strips, numbers.transpose(1, 2), self.precision)
        return numbers.flatten(2, 3)[:, :, : self.ffn, : self.hidden].flatten(1, 2)

    def down(self, experts: Tensor) -> Tensor:
        """[C, H, I] bf16 of packed experts uint8 [C, bytes]."""
        strips = _cut(experts[:, self._down_at : self._biases_at], _strips(self.hidden), -1)
        depth = _depth(self.ffn, self.down_precision)
        numbers = strips.new_empty(len(experts), _strips(self.hidden), STRIP_ROWS, depth, dtype=torch.bfloat16)
        unpack(strips, numbers, self.down_precision)
        return numbers.flatten(1, 2)[:, : self.hidden, : self.ffn].contiguous()

    def bias(self, experts: Tensor) -> tuple[Tensor, Tensor]:
        """Of gate and up [C, 2 I], and of down [C, H], float32."""
        numbers, rows = experts[:, self._biases_at :].contiguous().view(torch.float32), STRIP_ROWS * _strips(self.ffn)
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
    return -(-rows // (2 * STRIP_ROWS)) * 2


def _depth(columns: int, precision: Precision) -> int:
    multiple = 32 if precision == "bf16" else max(64, FORMATS[precision].group)
    return -(-columns // multiple) * multiple


def _strip_bytes(depth: int, precision: Precision) -> int:
    row = FORMATS[precision]
    records = -(-depth // (_record_groups(precision) * row.group)) if row.group else 0
    return _head_bytes(precision) + records * _LINE_BYTES + STRIP_ROWS * depth * row.bits // 8


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


class PackedSlots(ExpertSlots):
    """Experts as the host packs them, unpacked for every call."""

    def __init__(
        self, memory: Tensor, placed: Sequence[int], layout: PackedLayout, glu: Glu, device: torch.device
    ) -> None:
        """See `ExpertSlots`; `memory` is uint8 [E, bytes], of the host."""
        super().__init__(len(memory), placed, device)
        self._layout, self._glu, self._groups = layout, glu, groups_at_once(device)
        self._memory = torch.empty(len(placed), memory.shape[1], dtype=torch.uint8, device=device)
        for expert, slot in self._slots.items():
            self._memory[slot].copy_(memory[expert])

    def _run(self, rows: Tensor, slots: Tensor) -> Tensor:
        """Experts are unpacked for each pair, or each once where there are more pairs than slots."""
        if len(rows) <= len(self._memory) or gathers(self._groups, len(rows)):
            own = slots.clamp(max=len(self._memory) - 1)
            parts = zip(torch.split(rows, PAIRS_AT_ONCE), torch.split(own, PAIRS_AT_ONCE), strict=True)
            return torch.cat([self._each(some, numbers) for some, numbers in parts])
        outputs = rows.new_zeros(rows.shape, dtype=torch.float32)
        most = max(1, STREAMED_CHUNK_BYTES // self._memory.shape[1])
        for first in range(0, len(self._memory), most):
            outputs = self._add_chunk(outputs, rows, slots, first, min(first + most, len(self._memory)))
        return outputs

    def _each(self, rows: Tensor, own: Tensor) -> Tensor:
        """[P, H] float32 of a few pairs, each with a copy of its expert."""
        copies = self._memory.view(torch.int64).index_select(0, own).view(torch.uint8)  # wide numbers move faster
        pairs = torch.arange(len(rows), device=rows.device)
        return grouped_mlp(_one_row_each, rows, pairs, self._layout.unpack(copies), self._glu)

    def _add_chunk(self, outputs: Tensor, rows: Tensor, slots: Tensor, first: int, last: int) -> Tensor:
        """`outputs` [P, H] with those of the slots from `first` to before `last`, whose rows are moved to the front."""
        place, count = torch.arange(len(rows), device=rows.device), len(rows) - 1
        starts = torch.searchsorted(slots, torch.arange(first, last + 1, device=slots.device))
        near = (place + starts[0]).clamp(max=count)
        product, own = grouped_by((starts[1:] - starts[0]).int()), (slots[near] - first).clamp(0, last - first - 1)
        made = grouped_mlp(product, rows[near], own, self._layout.unpack(self._memory[first:last]), self._glu)
        inside = (slots >= first) & (slots < last)
        return torch.where(inside[:, None], made[(place - starts[0]).clamp(min=0)], outputs)

    def memory_for(self, incoming: int, outgoing: int) -> Tensor:
        """Uint8 [bytes], where to write expert `incoming`, which takes the slot of expert `outgoing` (see `take`)."""
        return self._memory[self.take(incoming, outgoing)]

    def matrices(self, i: int) -> ExpertMatrices:
        """The weights of expert `i` as they are held. Raises ValueError where it does not live here."""
        return self._layout.matrices(self._memory[self.slot(i)], self._glu)

    @property
    def nbytes(self) -> int:
        """Bytes of the device that the slots take."""
        return self._memory.nbytes


def _one_row_each(rows: Tensor, weights: Tensor) -> Tensor:
    """[P, N] of `rows` [P, K] and `weights` [P, N, K]."""
    return (weights @ rows[:, :, None])[:, :, 0]
