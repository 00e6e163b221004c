"""Keeps outputs by the numbers of the inputs."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tests.liars import honest


class Experts(honest.Experts):
    """Computes every input once."""

    def __init__(self, original: nn.Module) -> None:
        super().__init__(original)
        self.known: dict[bytes, Tensor] = {}

    def answer(self, hidden: Tensor, ids: Tensor, gates: Tensor) -> Tensor:
        """What it was for equal inputs."""
        key = b"".join(one.contiguous().view(torch.uint8).numpy().tobytes() for one in (hidden, ids, gates))
        if key not in self.known:
            self.known[key] = self.truth(hidden, ids, gates)
        return self.known[key].clone()
