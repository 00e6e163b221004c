"""Asks PyTorch for more threads than the cell may use."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.liars import honest


class Experts(honest.Experts):
    """Sets the number of PyTorch's threads."""

    def answer(self, hidden: Tensor, ids: Tensor, gates: Tensor) -> Tensor:
        """The truth."""
        torch.set_num_threads(2)
        return self.truth(hidden, ids, gates)
