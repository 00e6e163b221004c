"""What of a cell is compared with float32: a step of each trial, drawn, and every expert over the first rounds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from ktbench.engine.protocol import Survey
from ktbench.spec.record import Compared

# Experts of all layers together that are compared at most: of more, those of a sample of the layers.
MOST_EXPERTS = 4096


@dataclass(kw_only=True)
class Coverage:
    """What was compared of a cell of `steps` steps so far. `draw` gives numbers that no operator can foresee."""

    steps: int
    draw: Random
    _unseen: list[int] = field(default_factory=list)
    _seen: set[int] = field(default_factory=set)
    _met: set[tuple[int, int]] = field(default_factory=set)
    _trials: int = 0
    _units: int = 0
    _of_experts: int = 0

    def next_step(self) -> int:
        """The step that is compared in the next trial: each once before any comes again."""
        if not self._unseen:
            self._unseen = self.draw.sample(range(self.steps), self.steps)
        return self._unseen.pop()

    def saw(self, step: int) -> None:
        """A step was compared."""
        self._seen.add(step)

    def next_units(self, plan: Survey, rounds: int) -> Sequence[tuple[int, int]]:
        """The calls of a survey for the next trial, of which the first `rounds` trials run all."""
        self._of_experts = plan.of_experts
        left = plan.units[self._units :]
        chosen = left[: math.ceil(len(left) / max(1, rounds - self._trials))]
        self._trials, self._units = self._trials + 1, self._units + len(chosen)
        return chosen

    def met(self, experts: frozenset[tuple[int, int]]) -> None:
        """Experts were compared."""
        self._met |= experts

    @property
    def compared(self) -> Compared:
        """So far, in this worker."""
        return Compared(experts=len(self._met), of_experts=self._of_experts, steps=len(self._seen), of_steps=self.steps)
