"""Computes on more threads than the cell may use."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor, nn

from tests.liars import honest


class Experts(honest.Experts):
    """Halves of the tokens, or of the work, at the same time."""

    def __init__(self, original: nn.Module) -> None:
        super().__init__(original)
        self.pool = ThreadPoolExecutor(2)

    def answer(self, hidden: Tensor, ids: Tensor, gates: Tensor) -> Tensor:
        """The truth, computed by each of two threads for longer than it takes."""
        some = torch.randn(200, 200)
        list(self.pool.map(lambda _: [some @ some for _ in range(500)], range(2)))
        return self.truth(hidden, ids, gates)
