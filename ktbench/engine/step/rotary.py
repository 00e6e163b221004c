"""Rotary embedding of a recorded step, looked up where the modelling code would compute it anew.

Letters: B sequences, N positions there is room for, R numbers of a head that are rotated.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ktbench.engine.step.attending import StepAttention


class RotaryTable(nn.Module):
    """Stands where a network's rotary embedding stood: (hidden, positions [B, T]) to cosines and sines [B, T, R]."""

    def __init__(self, original: nn.Module, steps: StepAttention) -> None:
        super().__init__()
        self.original, self._steps = original, steps
        self._table: tuple[Tensor, Tensor] | None = None
        steps.tables.append(self)

    def make_room(self, room: int) -> None:
        """Have the first `room` positions at hand."""
        if self._table is None or len(self._table[0]) < room:
            like = torch.zeros(1, dtype=torch.bfloat16)
            cos, sin = self.original(like, torch.arange(room)[None])
            self._table = cos[0].contiguous(), sin[0].contiguous()

    def forward(self, hidden: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines in the type of `hidden`."""
        if self._steps.inputs is None or self._table is None:
            result: tuple[Tensor, Tensor] = self.original(hidden, position_ids)
            return result
        cos, sin = self._table
        return cos[position_ids], sin[position_ids]
