"""Taps on experts calls that are not timed."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ktbench.engine.protocol import Observation
from ktbench.engine.routing import Routing

# The reference widens every expert that these tokens went to: more of them would cost more than the timed step.
_MOST_TOKENS = 12


class Observer:
    """Keeps a seeded sample of tokens of every call; the same tokens in all layers of a pass.

    With `most_experts`, which must be as many as a token has at least, the tokens share so many experts among them.
    """

    def __init__(self, *seed: int, most_experts: int | None = None) -> None:
        self.seed, self.most_experts = seed, most_experts
        self.seen: list[Observation] = []

    def __call__(self, layer: int, hidden: Tensor, routing: Routing, output: Tensor) -> None:
        """Take down one call of `layer`: `hidden` and `output` [T, H]."""
        rows = self._sample(routing)
        observation = Observation(
            layer=layer,
            hidden=hidden[rows].float().numpy(force=True),
            ids=routing.ids[rows].numpy(force=True),
            gates=routing.gates[rows].numpy(force=True),
            output=output[rows].float().numpy(force=True),
        )
        self.seen.append(observation)

    def _sample(self, routing: Routing) -> Tensor:
        tokens = len(routing.ids)
        rows = np.random.default_rng((*self.seed, tokens)).permutation(tokens)
        if self.most_experts is not None:
            rows = rows[_sharing(routing.ids.numpy(force=True)[rows], self.most_experts)]
        return torch.from_numpy(np.sort(rows[:_MOST_TOKENS]))


def _sharing(ids: NDArray[np.int64], most_experts: int) -> list[int]:
    """Rows of `ids` [T, k], from the first on, that together have at most so many experts."""
    rows: list[int] = []
    shared: set[int] = set()
    for row, chosen in enumerate(ids.tolist()):
        joined = shared.union(chosen)
        if len(joined) <= most_experts:
            rows.append(row)
            shared = joined
        if len(rows) == _MOST_TOKENS:
            break
    return rows
