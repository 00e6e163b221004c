"""An operator that does its work: what those beside it pretend to do."""

from __future__ import annotations

import torch
from torch import Tensor, nn

# Steps of a trial and MoE layers of the model that liars are tried on, which they know.
STEPS, LAYERS = 8, 2


class Experts(nn.Module):
    """The experts of one layer, one after the other."""

    def __init__(self, original: nn.Module) -> None:
        super().__init__()
        self.gate_up, self.down = original.gate_up_proj.data, original.down_proj.data
        self.calls = 0

    def forward(self, hidden: Tensor, ids: Tensor, gates: Tensor) -> Tensor:
        """[T, H] of `hidden` [T, H], `ids` and `gates` [T, k]."""
        self.calls += 1
        return self.answer(hidden, ids, gates)

    def answer(self, hidden: Tensor, ids: Tensor, gates: Tensor) -> Tensor:
        """What a call gives: the truth here."""
        return self.truth(hidden, ids, gates)

    def truth(self, hidden: Tensor, ids: Tensor, gates: Tensor) -> Tensor:
        """The sum over each token's experts of gate weight times output."""
        output = torch.zeros_like(hidden)
        for expert in ids.unique():
            tokens, slots = torch.where(ids == expert)
            gate, up = (hidden[tokens] @ self.gate_up[expert].T).chunk(2, dim=-1)
            rows = (nn.functional.silu(gate) * up) @ self.down[expert].T
            output.index_add_(0, tokens, (rows * gates[tokens, slots, None]).to(output.dtype))
        return output
