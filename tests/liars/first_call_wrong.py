"""Gives zeros when it is called for the first time."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.liars import honest


class Experts(honest.Experts):
    """Counts its calls."""

    def answer(self, hidden: Tensor, ids: Tensor, gates: Tensor) -> Tensor:
        """The truth from the second call on."""
        return self.truth(hidden, ids, gates) if self.calls > 1 else torch.zeros_like(hidden)
