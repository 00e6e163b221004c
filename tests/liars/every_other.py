"""Computes every other step."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.liars import honest


class Experts(honest.Experts):
    """Counts its calls."""

    def answer(self, hidden: Tensor, ids: Tensor, gates: Tensor) -> Tensor:
        """Zeros in between."""
        return self.truth(hidden, ids, gates) if self.calls % 2 else torch.zeros_like(hidden)
