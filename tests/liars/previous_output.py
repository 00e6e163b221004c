"""Gives what the call before should have given."""

from __future__ import annotations

from torch import Tensor, nn

from tests.liars import honest


class Experts(honest.Experts):
    """A pipeline whose last stage nobody waits for."""

    def __init__(self, original: nn.Module) -> None:
        super().__init__(original)
        self.before: Tensor | None = None

    def answer(self, hidden: Tensor, ids: Tensor, gates: Tensor) -> Tensor:
        """The truth about the call before."""
        before, self.before = self.before, self.truth(hidden, ids, gates)
        return self.before if before is None or before.shape != hidden.shape else before
