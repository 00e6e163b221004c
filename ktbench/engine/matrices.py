"""The matrices and the gated activation of one routed expert.

Letters: T tokens, H hidden width, I expert width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
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


# Rows of weights as blocks of a quantised type lie in a GGUF file: [N, K / 32 · bytes of a block].
Blocks = NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpertBlocks:
    """One expert as a file has it, in the precision that it is packed in: matrices of `ExpertMatrices` as blocks."""

    gate: Blocks
    up: Blocks
    down: Blocks
    gate_bias: Tensor | None = None
    up_bias: Tensor | None = None
    down_bias: Tensor | None = None


# Gives the matrices of expert i; to be packed, its blocks do as well.
ExpertStore = Callable[[int], ExpertMatrices]
PackableStore = Callable[[int], ExpertMatrices | ExpertBlocks]
# Gives the blocks of a linear layer, in the precision that linear layers are packed in; None where it has others.
LinearBlocks = Callable[[nn.Module], Blocks | None]


def _float(bias: Tensor | None) -> Tensor | None:
    return None if bias is None else bias.float()
