"""A router of a recorded step: its product, which the recorder lowers, and its choice in one native call.

Letters: T tokens, H hidden width, E experts, k experts of a token.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ktbench._kernels import SmallCall
from ktbench.engine.dense import DenseHost
from ktbench.engine.fused import bits
from ktbench.engine.inject.forms import read_router
from ktbench.engine.step.attending import StepAttention
from ktbench.engine.step.later import settled


class StepRouter(nn.Module):
    """Stands where a router stood whose form `read_router` knows."""

    def __init__(self, original: nn.Module, device: DenseHost, steps: StepAttention) -> None:
        super().__init__()
        self.original, self._device, self._steps = original, device, steps
        self._form = read_router(original)

    def forward(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Logits [T, E] bf16, weights [T, k] and ids [T, k] int64 of `hidden` [..., H], as the original gives them.

        Of equal logits a recorded step chooses the lower id; which one PyTorch chooses is not defined.
        """
        if self._steps.inputs is None or hidden.dtype != torch.bfloat16:
            result: tuple[Tensor, Tensor, Tensor] = self.original(hidden)
            return result
        weight = self.original.get_parameter("weight")
        logits = nn.functional.linear(settled(hidden).reshape(-1, weight.shape[1]), weight)
        return logits, *self._select(logits)

    def _select(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        form = self._form
        ids = logits.new_empty(len(logits), form.top_k, dtype=torch.int64)
        weights = logits.new_empty(ids.shape, dtype=form.weights)
        numbers = bits(weights) if form.weights == torch.bfloat16 else weights.numpy()
        call = SmallCall.select_experts(bits(logits), ids.numpy(), numbers, renormalised=form.renormalised)
        self._device.tape.do(call.forward, logits, ids, weights)
        return weights, ids
