"""Computes only the first and the last step of a trial."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.liars import honest


class Experts(honest.Experts):
    """Counts its calls."""

    def answer(self, hidden: Tensor, ids: Tensor, gates: Tensor) -> Tensor:
        """Zeros in between."""
        if self.calls % honest.STEPS in (0, 1):
            return self.truth(hidden, ids, gates)
        return torch.zeros_like(hidden)
