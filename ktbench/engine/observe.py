"""What the correctness check compares: sampled, untimed experts calls, and their output in float32 arithmetic."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ktbench.engine.forms import ExpertFunctions
from ktbench.engine.protocol import ExpertsObservation, NotComputed
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


def float32_output(experts: ExpertFunctions, hidden: Tensor, routing: Routing) -> Tensor:
    """[T, H] float32 of `hidden` [T, H] float32: the sum over each token's experts of gate weight times output.

    Each expert is run once, for its own tokens alone. An id of -1 selects no expert.
    """
    total = torch.zeros_like(hidden)
    for i in sorted(set(routing.ids.flatten().tolist()) - {-1}):
        token, column = (routing.ids == i).nonzero(as_tuple=True)
        total.index_add_(0, token, experts(i)(hidden[token]) * routing.gates[token, column, None])
    return total


def truth_of(experts: ExpertFunctions, seen: ExpertsObservation) -> NDArray[np.float32]:
    """The output [T, H] of an observed call in float32 arithmetic."""
    routing = Routing(ids=torch.from_numpy(seen.ids), gates=torch.from_numpy(seen.gates))
    return float32_output(experts, torch.from_numpy(seen.hidden), routing).numpy()


class KeptOutputs:
    """Copies of the outputs of single steps, in memory of the host that is reused from trial to trial."""

    def __init__(self) -> None:
        self._copies: dict[int, Tensor] = {}
        self._free: list[Tensor] = []

    def take(self, step: int, output: Tensor) -> None:
        """Copy the output of a step, which is then there. Raises NotComputed for what may still be computed."""
        if type(output) is not Tensor:
            raise NotComputed(f"a step gives a {type(output).__name__} in place of a torch.Tensor")
        memory = self._free.pop() if self._free else torch.empty(0)
        if (memory.shape, memory.dtype) != (output.shape, output.dtype):
            memory = torch.empty(output.shape, dtype=output.dtype)
        self._copies[step] = memory.copy_(output)

    def of(self, step: int) -> Tensor | None:
        """The copy of a step; None where none was taken."""
        return self._copies.get(step)

    def clear(self) -> None:
        """Forget all; their memory is used again."""
        self._free += self._copies.values()
        self._copies = {}
