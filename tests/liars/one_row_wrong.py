"""Leaves out one token of a long call."""

from __future__ import annotations

from torch import Tensor

from tests.liars import honest


class Experts(honest.Experts):
    """Gives one row zeros."""

    def answer(self, hidden: Tensor, ids: Tensor, gates: Tensor) -> Tensor:
        """The truth but for one row."""
        output = self.truth(hidden, ids, gates)
        if len(output) > 64:
            output[100 % len(output)] = 0
        return output
