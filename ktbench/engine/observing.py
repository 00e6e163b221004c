"""Taps on the experts calls of one untimed pass."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ktbench.engine.protocol import Observation
from ktbench.engine.routing import Routing

# The reference widens every expert that these tokens went to: more of them would cost more than the timed step.
_MOST_TOKENS = 12


class Observer:
    """Keeps a seeded sample of tokens of every call; the same tokens in all layers of a pass."""

    def __init__(self, *seed: int) -> None:
        self.seed = seed
        self.seen: list[Observation] = []

    def __call__(self, layer: int, hidden: Tensor, routing: Routing, output: Tensor) -> None:
        """Take down one call of `layer`: `hidden` and `output` [T, H]."""
        rows = self._sample(len(hidden))
        observation = Observation(
            layer=layer,
            hidden=hidden[rows].float().numpy(),
            ids=routing.ids[rows].numpy(),
            gates=routing.gates[rows].numpy(),
            output=output[rows].float().numpy(),
        )
        self.seen.append(observation)

    def _sample(self, tokens: int) -> Tensor:
        rows = np.random.default_rng((*self.seed, tokens)).permutation(tokens)[:_MOST_TOKENS]
        return torch.from_numpy(np.sort(rows))
