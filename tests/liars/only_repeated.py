"""Computes only what is asked a second time, as a check does."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tests.liars import honest


class Experts(honest.Experts):
    """Knows a repetition by its numbers."""

    def __init__(self, original: nn.Module) -> None:
        super().__init__(original)
        self.asked: set[bytes] = set()

    def answer(self, hidden: Tensor, ids: Tensor, gates: Tensor) -> Tensor:
        """Zeros for what is new."""
        key = hidden.contiguous().view(torch.uint8).numpy().tobytes()
        if key in self.asked:
            return self.truth(hidden, ids, gates)
        self.asked.add(key)
        return torch.zeros_like(hidden)
