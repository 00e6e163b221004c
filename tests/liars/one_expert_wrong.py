"""Leaves out one expert of all."""

from __future__ import annotations

from torch import Tensor

from tests.liars import honest


class Experts(honest.Experts):
    """Gives expert 3 no weight."""

    def answer(self, hidden: Tensor, ids: Tensor, gates: Tensor) -> Tensor:
        """The truth without expert 3."""
        return self.truth(hidden, ids, gates.masked_fill(ids == 3, 0))
