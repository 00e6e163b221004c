"""Products of grouped rows with the matrices of frozen experts, and with their transposed.

Letters: R rows given, S slots, H hidden width, I expert width.
"""

from __future__ import annotations

from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from ktbench._kernels import ExpertProducts, PackedExperts
from ktbench.engine.training.slots import LoraSlots

# gate_up: [2I, H], gate's rows, then up's. down: [H, I].
Matrices = Literal["gate_up", "down"]


class Products(Protocol):
    """Slot s multiplies row `row[s]` of the rows given by the matrices of its expert; `row` is int32 [S]."""

    def forward(self, which: Matrices, rows: Tensor, row: Tensor, slots: LoraSlots, /) -> Tensor:
        """W x: [S, 2I] or [S, H] of rows [R, H] or [R, I]."""

    def transposed(self, which: Matrices, rows: Tensor, row: Tensor, slots: LoraSlots, /) -> Tensor:
        """W^T y: [S, H] or [S, I] of rows [R, 2I] or [R, H]."""


class PackedProducts(Products):
    """By the kernels, on packed experts: sums in float32; activations as the fused operator's, gradients in float32."""

    def __init__(self, products: ExpertProducts, packed: PackedExperts, kernels: dict[str, Any]) -> None:
        self._products, self._packed, self._kernels = products, packed, kernels

    def forward(self, which: Matrices, rows: Tensor, row: Tensor, slots: LoraSlots) -> Tensor:
        """See `Products`; rows become bf16."""
        gates, packed = which == "gate_up", self._packed
        parts, columns = (1, 2 * packed.intermediate) if gates else (packed.domains, packed.hidden)
        out = torch.empty(parts, len(slots), columns)
        bits = rows.bfloat16().contiguous().view(torch.uint16).numpy()
        self._products.forward(which, bits, row.numpy(), slots.first.numpy(), out.numpy(), **self._kernels)
        return _sum(out)

    def transposed(self, which: Matrices, rows: Tensor, row: Tensor, slots: LoraSlots) -> Tensor:
        """See `Products`; rows become float32."""
        gates, packed = which == "gate_up", self._packed
        parts, columns = (packed.domains, packed.hidden) if gates else (1, packed.intermediate)
        out = torch.empty(parts, len(slots), columns)
        numbers = rows.float().contiguous().numpy()
        self._products.transposed(which, numbers, row.numpy(), slots.first.numpy(), out.numpy(), **self._kernels)
        return _sum(out)


def _sum(parts: Tensor) -> Tensor:
    """Of what each domain has found for its share."""
    return parts[0] if len(parts) == 1 else parts.sum(0)
