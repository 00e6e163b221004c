"""Experts that live with the device role: who they are, and how they move while steps run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from ktbench.core.engine import PlacementSpec
from ktbench.core.spec import ModelSpec
from ktbench.engine.operator import Backend, ExpertsOperator
from ktbench.engine.placing import DynamicPlacement, place_experts
from ktbench.engine.residence import Residence
from ktbench.engine.routing import PassRouting
from ktbench.workload.profile import read_profile


class Residents:
    """The placement of one cell. `backends` run each layer's experts on the device role."""

    def __init__(
        self,
        placement: PlacementSpec,
        model: ModelSpec,
        operators: Sequence[ExpertsOperator],
        backends: Sequence[Backend],
    ) -> None:
        profile = None if placement.profile is None else read_profile(placement.profile, model)
        at_device = place_experts(placement, model.shape, profile)
        self._residences = [Residence(torch.from_numpy(layer)) for layer in at_device]
        self._dynamic = DynamicPlacement(at_device, every=placement.every) if placement.policy == "dynamic" else None
        self._steps = self._moved = 0
        for operator, residence, backend in zip(operators, self._residences, backends, strict=True):
            operator.residence, operator.at_device = residence, backend

    def after_step(self, routing: Sequence[PassRouting]) -> None:
        """What was selected in a step's passes moves experts, where the placement is dynamic."""
        if self._dynamic is None:
            return
        for one_pass in routing:
            for layer, selected in enumerate(one_pass):
                self._dynamic.note(layer, selected.ids.numpy())
        self._steps += 1
        for move in self._dynamic.moves(self._steps):
            self._residences[move.layer].move([move])
            self._moved += 1

    def counters(self) -> Mapping[str, int]:
        """Pairs of a token and an expert that the device role served, and experts that moved."""
        served = sum(int(residence.served[1]) for residence in self._residences)
        return {"device_experts": served, "experts_moved": self._moved}


def leave(operators: Sequence[ExpertsOperator]) -> None:
    """All experts live with the host again."""
    for operator in operators:
        operator.residence = operator.at_device = None
