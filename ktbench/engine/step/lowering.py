"""Better ways to do what a recording found."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from ktbench._kernels import Linear, PackedMatrix
from ktbench.engine.dense import DenseHost
from ktbench.engine.fused import bits
from ktbench.engine.step.program import Call

# More rows than a router has experts belong to a layer that the rules left alone on purpose.
_MOST_ROWS = 1024


class Lowering:
    """Products of bf16 with small constant matrices, as routers form them, on the matrices packed in bf16.

    For one token PyTorch takes longer to begin than to multiply.
    """

    def __init__(self, device: DenseHost) -> None:
        self._device = device
        self._packed: dict[int, tuple[PackedMatrix, Tensor]] = {}

    def __call__(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Tensor) -> Call | None:
        """See `ktbench.engine.step.program.Lowering`."""
        if func is not torch.ops.aten.linear.default or kwargs or result.dtype != torch.bfloat16:
            return None
        x, weight, bias = (*args, None)[:3]
        if len(weight) > _MOST_ROWS or not x.is_contiguous() or not result.is_contiguous():
            return None
        kernel = Linear(self._pack(weight), self._device.team, None if bias is None else bias.float().numpy())
        rows = x.view(-1, x.shape[-1])
        return partial(kernel.forward, bits(rows), bits(result.view(len(rows), -1)))

    def _pack(self, weight: Tensor) -> PackedMatrix:
        if id(weight) not in self._packed:
            packed = PackedMatrix(weight.shape[0], weight.shape[1])
            packed.write(bits(weight.contiguous()), 0, self._device.team)
            self._packed[id(weight)] = packed, weight  # kept, so that its id stays its own
        return self._packed[id(weight)][0]
