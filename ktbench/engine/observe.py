"""What the correctness check compares: sampled, untimed experts calls, and their output in float32 arithmetic."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ktbench.engine.forms import ExpertStore
from ktbench.engine.protocol import ExpertsObservation
from ktbench.engine.routing import Routing

# The reference widens every expert that these tokens went to: more of them would cost more than the timed step.
_MOST_TOKENS = 12


class Observer:
    """Keeps a seeded sample of tokens of every call; the same tokens in all layers of a pass.

    With `most_experts`, which must be as many as a token has at least, the tokens share so many experts among them.
    """

    def __init__(self, *seed: int, most_experts: int | None = None) -> None:
        self.seed, self.most_experts = seed, most_experts
        self.seen: list[ExpertsObservation] = []

    def __call__(self, layer: int, hidden: Tensor, routing: Routing, output: Tensor) -> None:
        """Take down one call of `layer`: `hidden` and `output` [T, H]."""
        rows = self._sample(routing)
        observation = ExpertsObservation(
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


class ExpertsReference:
    """The experts' output in float32 arithmetic for `hidden` [T, H] float32.

    Each expert is run once, whatever the number of routings. An id of -1 selects no expert.
    """

    def __init__(self, store: ExpertStore, hidden: Tensor) -> None:
        self.hidden = hidden
        self._store = store
        self._outputs: dict[int, Tensor] = {}

    def __call__(self, routing: Routing) -> Tensor:
        """[T, H] float32: the sum over each token's experts of gate weight times output."""
        total = torch.zeros_like(self.hidden)
        for i in sorted(set(routing.ids.flatten().tolist()) - {-1}):
            token, column = (routing.ids == i).nonzero(as_tuple=True)
            total.index_add_(0, token, self._output(i)[token] * routing.gates[token, column, None])
        return total

    def of(self, observation: ExpertsObservation) -> NDArray[np.float32]:
        """The same for the routing of an observation of these tokens."""
        return self(Routing(ids=torch.from_numpy(observation.ids), gates=torch.from_numpy(observation.gates))).numpy()

    def _output(self, i: int) -> Tensor:
        if i not in self._outputs:
            self._outputs[i] = self._store(i)(self.hidden)
        return self._outputs[i]
