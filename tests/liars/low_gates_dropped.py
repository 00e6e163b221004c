"""Leaves out experts whose gate is below a twentieth of the token's highest."""

from __future__ import annotations

from torch import Tensor

from tests.liars import honest


class Experts(honest.Experts):
    """Gives low gates no weight."""

    def answer(self, hidden: Tensor, ids: Tensor, gates: Tensor) -> Tensor:
        """The truth without them."""
        low = gates < 0.05 * gates.amax(dim=-1, keepdim=True)
        return self.truth(hidden, ids, gates.masked_fill(low, 0))
