"""The matrices and the gated activation of one routed expert.

Letters: T tokens, H hidden width, I expert width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import gelu, linear

Activation = Literal["silu", "gelu_tanh"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Glu:
    """h = act(g) · (u + offset) with g = min(gate, limit) and u = clamp(up, -limit, limit).

    `silu` is g · σ(alpha · g); `gelu_tanh` (Hendrycks and Gimpel, 2016) has no alpha. No `limit` clamps nothing.
    """

    activation: Activation = "silu"
    alpha: float = 1.0
    limit: float | None = None
    offset: float = 0.0

    def __call__(self, gate: Tensor, up: Tensor) -> Tensor:
        """[T, I] of `gate` and `up` [T, I], in their type."""
        if self.limit is not None:
            gate, up = gate.clamp(max=self.limit), up.clamp(-self.limit, self.limit)
        if self.activation == "gelu_tanh":
            return gelu(gate, approximate="tanh") * (up + self.offset)
        return gate * torch.sigmoid(self.alpha * gate) * (up + self.offset)


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpertMatrices:
    """One expert: `gate` and `up` [I, H], `down` [H, I]; biases [I], [I], [H] where the family has them, else None."""

    gate: Tensor
    up: Tensor
    down: Tensor
    gate_bias: Tensor | None = None
    up_bias: Tensor | None = None
    down_bias: Tensor | None = None
    glu: Glu = Glu()

    def __call__(self, hidden: Tensor) -> Tensor:
        """[T, H] float32 of `hidden` [T, H] float32."""
        gate = linear(hidden, self.gate.float(), _float(self.gate_bias))
        up = linear(hidden, self.up.float(), _float(self.up_bias))
        return linear(self.glu(gate, up), self.down.float(), _float(self.down_bias))


# Gives the matrices of expert i.
ExpertStore = Callable[[int], ExpertMatrices]


def _float(bias: Tensor | None) -> Tensor | None:
    return None if bias is None else bias.float()
