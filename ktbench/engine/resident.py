"""Experts that live with the device role: who they are, and how they move while steps run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from ktbench.engine.operator import Backend, ExpertsOperator
from ktbench.engine.placing import DynamicPlacement, Move, place_experts
from ktbench.engine.residence import Residence
from ktbench.engine.routing import PassRouting
from ktbench.engine.workload.recorded import read_profile
from ktbench.spec.engine import PlacementSpec
from ktbench.spec.run_spec import ModelSpec


class Home(Protocol):
    """The device role's side of one layer: what runs the experts that live there."""

    @property
    def backend(self) -> Backend:
        """Runs them."""

    def move(self, move: Move) -> None:
        """An expert comes and another goes; called between steps."""


# The home of a layer's experts, which are marked in [E].
Settle = Callable[[ExpertsOperator, NDArray[np.bool_]], Home]


class Residents:
    """The placement of one cell on `device`."""

    def __init__(
        self,
        placement: PlacementSpec,
        model: ModelSpec,
        operators: Sequence[ExpertsOperator],
        settle: Settle,
        device: torch.device,
    ) -> None:
        profile = None if placement.profile is None else read_profile(placement.profile, model)
        at_device = place_experts(placement, model.shape, profile)
        self._residences = [Residence(torch.from_numpy(layer).to(device)) for layer in at_device]
        self._homes: dict[int, Home] = {}
        self._dynamic = DynamicPlacement(at_device, every=placement.every) if placement.policy == "dynamic" else None
        self._steps = self._moved = 0
        for number in np.flatnonzero(at_device.any(axis=1)).tolist():
            self._homes[number] = settle(operators[number], at_device[number])

    def enter(self, operators: Sequence[ExpertsOperator]) -> None:
        """From now on experts live where they lived when this placement was left."""
        leave(operators)
        for number, home in self._homes.items():
            operators[number].residence, operators[number].at_device = self._residences[number], home.backend

    def after_step(self, routing: Sequence[PassRouting]) -> None:
        """What was selected in a step's passes moves experts, where the placement is dynamic."""
        if self._dynamic is None:
            return
        for one_pass in routing:
            for layer, selected in enumerate(one_pass):
                self._dynamic.note(layer, selected.ids.numpy(force=True))
        self._steps += 1
        for move in self._dynamic.moves(self._steps):
            self._residences[move.layer].move([move])
            self._homes[move.layer].move(move)
            self._moved += 1

    def counters(self) -> Mapping[str, int]:
        """Pairs of a token and an expert that the device role served, and experts that moved."""
        served = sum(int(residence.served[1]) for residence in self._residences)
        return {"device_experts": served, "experts_moved": self._moved}


def leave(operators: Sequence[ExpertsOperator]) -> None:
    """All experts live with the host again."""
    for operator in operators:
        operator.residence = operator.at_device = None


class SameMemory:
    """A home on CPU cores: both roles read the same weights, so nothing is carried when an expert moves."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend

    def move(self, move: Move) -> None:
        """See `Home`."""
