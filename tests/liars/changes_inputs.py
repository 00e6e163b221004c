"""Sets its inputs to zero, for which zeros are right."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.liars import honest


class Experts(honest.Experts):
    """Overwrites what it is given."""

    def answer(self, hidden: Tensor, ids: Tensor, gates: Tensor) -> Tensor:
        """Zeros."""
        hidden.zero_()
        gates.zero_()
        return torch.zeros_like(hidden)
