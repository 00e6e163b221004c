"""LoRA on the matrices of routed experts: W x + scale · B (A x), factors of their own for every expert.

Letters: E experts, S slots, r rank, K inputs, N outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ktbench.engine.training.slots import LoraSlots

# Gives the rows of some slots, [n, K].
RowsOf = Callable[[slice], Tensor]


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpertAdapter:
    """The factors of one kind of matrix (Hu et al., 2021): `a` [E, r, K], `b` [E, N, r]."""

    a: Tensor
    b: Tensor
    scale: float

    def add_to(self, products: Tensor, rows: RowsOf, slots: LoraSlots) -> None:
        """Products [S, N] += scale · B (A x)."""
        a, b = self._factors()
        for expert, group in slots.groups():
            low = rows(group).to(a.dtype) @ a[expert].T
            products[group].addmm_(low.to(products.dtype), b[expert].T.to(products.dtype), alpha=self.scale)

    def _factors(self) -> tuple[Tensor, Tensor]:
        """In at least float32, which small products are fastest in."""
        kind = torch.promote_types(self.a.dtype, torch.float32)
        return self.a.detach().to(kind), self.b.detach().to(kind)

    def gradients(
        self, rows: RowsOf, grads: RowsOf, inputs: Tensor | None, slots: LoraSlots, weights: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Of `a` and `b`, where `grads` [n, N] are those of the products of some slots, weighted by `weights` [S].

        That of the rows, without the weight, is added to `inputs` [S, K], unless None.
        """
        a, b = self._factors()
        grad_a, grad_b = torch.zeros_like(a), torch.zeros_like(b)
        for expert, group in slots.groups():
            x, y = rows(group).to(a.dtype), grads(group).to(a.dtype)
            forth, back = x @ a[expert].T, y @ b[expert]
            if inputs is not None:
                inputs[group].addmm_(back.to(inputs.dtype), a[expert].to(inputs.dtype), alpha=self.scale)
            factor = self.scale if weights is None else self.scale * weights[group, None].to(a.dtype)
            torch.mm((back * factor).T, x, out=grad_a[expert])
            torch.mm(y.T, forth * factor, out=grad_b[expert])
        return grad_a.to(self.a.dtype), grad_b.to(self.b.dtype)
