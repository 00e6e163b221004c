"""Keeps outputs by the addresses of the inputs."""

from __future__ import annotations

from torch import Tensor, nn

from tests.liars import honest


class Experts(honest.Experts):
    """Computes what lies at an address once."""

    def __init__(self, original: nn.Module) -> None:
        super().__init__(original)
        self.known: dict[tuple[int, ...], Tensor] = {}

    def answer(self, hidden: Tensor, ids: Tensor, gates: Tensor) -> Tensor:
        """What was there before."""
        key = (hidden.data_ptr(), len(hidden))
        if key not in self.known:
            self.known[key] = self.truth(hidden, ids, gates)
        return self.known[key].clone()
