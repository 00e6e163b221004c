"""Shared by peers that run one MoE layer: supported experts, their rounding, and errors of kernels."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ktbench.engine.forms import ExpertMatrices, Glu
from ktbench.engine.layer import BindableBackend
from ktbench.engine.load_layer import LayerWeights
from ktbench.engine.protocol import Unsupported
from ktbench.engine.routing import Routing

_SAMPLE_TOKENS = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Rounding:
    """Integers from -`most` - 1 to `most`; `group` columns share a scale, 0 for the whole row."""

    most: int
    group: int = 0
    scale_type: torch.dtype = torch.float32

    def numbers(self, matrix: Tensor) -> tuple[Tensor, Tensor]:
        """Numbers [N, K] int8 and scales [N, G] float32 of `matrix` [N, K]: the nearest, ties to even."""
        groups = self._groups(matrix.float())
        scales = (groups.abs().amax(dim=-1, keepdim=True) / self.most).to(self.scale_type).float()
        inverse = torch.where(scales > 0, 1 / scales, 0.0)
        numbers = torch.round(groups * inverse).clamp(-self.most - 1, self.most)
        return numbers.flatten(1).to(torch.int8), scales.squeeze(-1)

    def __call__(self, matrix: Tensor) -> Tensor:
        """`matrix` [N, K] as it counts once rounded, float32."""
        numbers, scales = self.numbers(matrix)
        return (self._groups(numbers.float()) * scales[..., None]).flatten(1)

    @property
    def description(self) -> str:
        """How weights are rounded, for a remark."""
        return f"a scale for {self.group} weights" if self.group else "one scale a row"

    def _groups(self, matrix: Tensor) -> Tensor:
        return matrix.reshape(len(matrix), -1, self.group or matrix.shape[-1])


@dataclass(frozen=True, kw_only=True, slots=True)
class Float8Blocks:
    """Float8 e4m3 with a float32 scale for each block of `block` rows and columns, as in DeepSeek-V3's release."""

    block: int = 128

    def numbers(self, matrix: Tensor) -> tuple[Tensor, Tensor]:
        """Numbers [N, K] float8_e4m3fn and scales [N / block, K / block] float32 of `matrix` [N, K]."""
        blocks = self._blocks(matrix.float())
        scales = blocks.abs().amax(dim=(1, 3), keepdim=True) / torch.finfo(torch.float8_e4m3fn).max
        numbers = (blocks * torch.where(scales > 0, 1 / scales, 0.0)).to(torch.float8_e4m3fn)
        return numbers.reshape(matrix.shape), scales[:, 0, :, 0].contiguous()

    def __call__(self, matrix: Tensor) -> Tensor:
        """`matrix` [N, K] as it counts once rounded, float32."""
        numbers, scales = self.numbers(matrix)
        return (self._blocks(numbers.float()) * scales[:, None, :, None]).reshape(matrix.shape)

    @property
    def description(self) -> str:
        """How weights are rounded, for a remark."""
        return f"e4m3 with a scale for {self.block} × {self.block} weights"

    def _blocks(self, matrix: Tensor) -> Tensor:
        rows, columns = matrix.shape
        return matrix.reshape(rows // self.block, self.block, columns // self.block, self.block)


class BoundBackend(BindableBackend, Protocol):
    """The calls of a `BindableBackend` through `bind`, for peers without a separate role."""

    def __call__(self, hidden: Tensor, routing: Routing) -> Tensor:
        """[T, H] bf16 from `hidden` [T, H] bf16; raises like `bind`."""
        hidden = hidden.contiguous()
        return self.bind(hidden, routing, torch.empty_like(hidden))()


def other_form(weights: LayerWeights, name: str) -> str:
    """Why a peer that runs only plain experts cannot run these; empty if it can."""
    form = weights.form
    if form.biases or form.glu != Glu():
        return f"{name} runs experts without biases, activated by silu(gate) · up, unlike those of this family"
    return ""


def output_lost(expert: ExpertMatrices, stored: ExpertMatrices) -> float:
    """Relative Frobenius error of an expert's output due to its stored weights, in float32 arithmetic."""
    hidden = torch.randn(_SAMPLE_TOKENS, expert.gate.shape[1], generator=torch.Generator().manual_seed(0))
    whole = expert(hidden)
    return float((stored(hidden) - whole).norm() / whole.norm())


@contextmanager
def refusals_of(what: str, *kinds: type[Exception]) -> Iterator[None]:
    """Turns errors of these kinds, with which a kernel rejects a call, into Unsupported, unless memory ran out."""
    try:
        yield
    except kinds as error:
        if "allocate" in str(error):
            raise
        reason = str(error).partition("\n")[0]
        raise Unsupported(f"{what} is refused: {reason}") from None
