"""Copies of one layer, used in turn: every weight comes from memory, as it does in a model with many layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ktbench.engine.operator import Backend
from ktbench.engine.routing import Routing
from ktbench.spec.run_spec import RunSpec
from ktbench.spec.weights import Precision

Call = Callable[[], Tensor]


class BindableBackend(Backend, Protocol):
    """A backend whose call can be prepared."""

    def bind(self, hidden: Tensor, routing: Routing, output: Tensor, /) -> Call:
        """The call on `hidden` [T, H], which gives [T, H]; `output` [T, H] is memory that it may write that to."""


class Copies:
    """The experts of one layer, held several times over in `precision`.

    Steps go through the copies in turn, and in each copy on through its experts: a step that needs `a` of them is given
    the next `a`. So no expert comes back before all others were read, give or take a step of each copy.
    """

    def __init__(self, backends: Sequence[BindableBackend], experts: int, precision: Precision = "bf16") -> None:
        if not backends:
            raise ValueError("a layer needs at least one copy")
        self.precision = precision
        self._backends, self._experts = backends, experts
        self._next = [0] * len(backends)
        self._steps = 0

    @property
    def count(self) -> int:
        """How often the layer is held."""
        return len(self._backends)

    def take(self, ranks: NDArray[np.int64], active: int) -> tuple[BindableBackend, NDArray[np.int64]]:
        """The copy for the next step, and its experts in place of `ranks`, which count a step's from 0 to `active`."""
        copy = self._steps % len(self._backends)
        first = self._next[copy]
        self._steps += 1
        self._next[copy] = (first + active) % self._experts
        return self._backends[copy], (first + ranks) % self._experts


# Steps of the workload without end, on these copies: for whoever tries settings. Each `next` runs one.
Trial = Callable[[Copies], Iterator[None]]


class HeldLayer(Protocol):
    """One MoE layer in memory and whoever runs it: what our engine and the peers differ in."""

    def choose(self, spec: RunSpec, trial: Trial, /) -> Copies:
        """The copies that run from now on, set up as `spec` asks.

        Raises Unsupported, and ValueError for what was not kept at load or a thread count that is not to be had.
        """

    def counters(self) -> Mapping[str, int]:
        """See `System`."""

    def notes(self, spec: RunSpec, /) -> tuple[str, ...]:
        """See `System`, of a spec that was chosen before."""

    def close(self) -> None:
        """Let go of weights and threads."""
