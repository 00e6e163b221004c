"""Which token comes next: the likeliest, or one drawn from a distribution that does not know of its batch.

Letters: R sequences, V tokens of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """How the tokens of one answer are chosen: the likeliest at temperature 0, else drawn.

    Of the tokens those are left whose probabilities, from the largest down, reach `top_p` first (Holtzman 2020). The
    numbers drawn depend on `seed` alone, whatever else is in the batch.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.temperature < 0:
            raise ValueError(f"temperature={self.temperature}: must be 0 or above")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p={self.top_p}: allowed are values above 0 up to 1")


class Chooser:
    """Chooses the tokens of answers, up to `room` each; answers count from 0 as `samplings` do."""

    def __init__(self, samplings: Sequence[Sampling], room: int) -> None:
        self._samplings = samplings
        self._drawn = {i: _uniform(one.seed, room) for i, one in enumerate(samplings) if one.temperature}

    def choose(self, logits: Tensor, answers: Sequence[int], number: int) -> list[int]:
        """Token `number` of each of `answers`, whose logits are the rows of `logits` [R, V]."""
        tokens: list[int] = logits.argmax(dim=-1).tolist()
        if not self._drawn:
            return tokens
        wide = logits.to("cpu", torch.float64)
        for row, answer in enumerate(answers):
            if answer in self._drawn:
                tokens[row] = draw(wide[row], self._samplings[answer], float(self._drawn[answer][number]))
        return tokens


def draw(logits: Tensor, sampling: Sampling, uniform: float) -> int:
    """The token that a number in [0, 1) stands for, of `logits` [V] float64, at a temperature above 0."""
    chances, tokens = torch.softmax(logits / sampling.temperature, dim=-1).sort(descending=True, stable=True)
    reached = chances.cumsum(dim=-1)
    left = int((reached - chances < sampling.top_p).sum())
    at = int(torch.searchsorted(reached[:left], uniform * float(reached[left - 1]), right=True))
    return int(tokens[min(at, left - 1)])


def _uniform(seed: int, count: int) -> Tensor:
    return torch.rand(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
