"""Experts of the device role in a run: where each layer's experts are, who runs them, and their moves between steps.

Letters: T tokens of a call, k experts of a token, E experts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ktbench.engine.backend import ExpertsBackend
from ktbench.engine.experts import ExpertsOperator
from ktbench.engine.placement import DynamicPlacement, ExpertSwap, place_experts
from ktbench.engine.routing import Residence
from ktbench.engine.workload.recorded import read_profile
from ktbench.spec.engine import PlacementSpec
from ktbench.spec.run_spec import ModelSpec


class DeviceExperts(Protocol):
    """The device role's side of one layer: what runs the experts that live there."""

    @property
    def backend(self) -> ExpertsBackend:
        """Runs them."""

    def move(self, move: ExpertSwap) -> None:
        """An expert comes and takes the place of another, which nobody asks for any more; called between steps."""

    def arrived(self) -> bool:
        """Whether all that have come so far may be asked for; waits for nothing."""

    def finish(self) -> None:
        """Return when they may be."""


# Makes what runs the experts of a layer that are marked in [E].
MakeDeviceExperts = Callable[[ExpertsOperator, NDArray[np.bool_]], DeviceExperts]


class DevicePlacement:
    """The placement of one cell on `device`. Its experts are there between `enter` and `leave`.

    Between when an expert is told to come and when it has arrived, the host serves it and the one whose place it takes;
    no others are told to come meanwhile.
    """

    def __init__(
        self, placement: PlacementSpec, model: ModelSpec, make: MakeDeviceExperts, device: torch.device
    ) -> None:
        profile = None if placement.profile is None else read_profile(placement.profile, model)
        at_device = place_experts(placement, model.shape, profile)
        self._make = make
        self._residences = [Residence(torch.from_numpy(layer).to(device)) for layer in at_device]
        self._device_experts: dict[int, DeviceExperts] = {}
        self._dynamic = DynamicPlacement(at_device, every=placement.every) if placement.policy == "dynamic" else None
        self._coming: list[ExpertSwap] = []
        self._steps = self._moved = 0
        self._numbers = np.flatnonzero(at_device.any(axis=1)).tolist()

    def at_device(self) -> list[Tensor]:
        """Of every MoE layer the experts that live with the device now: bool [E], in memory of the host."""
        return [residence.at_device.cpu() for residence in self._residences]

    def attach(self, operators: Sequence[ExpertsOperator]) -> None:
        """From now on experts live where they lived when this placement was last used."""
        detach(operators)
        for number in self._numbers:
            operator, residence = operators[number], self._residences[number]
            if number not in self._device_experts:
                self._device_experts[number] = self._make(operator, residence.at_device.numpy(force=True))
            operator.residence, operator.device_backend = residence, self._device_experts[number].backend

    def release(self) -> None:
        """Give the memory of the device back, once all experts on their way have arrived."""
        for move in self._coming:
            self._device_experts[move.layer].finish()
        self._arrive()
        self._device_experts.clear()

    def after_step(self, selected: Sequence[NDArray[np.int64]]) -> None:
        """What each of a step's passes selected, [MoE layers, T, k], moves experts where the placement is dynamic."""
        if self._dynamic is None:
            return
        for one_pass in selected:
            for layer, ids in enumerate(one_pass):
                self._dynamic.note(layer, ids)
        self._steps += 1
        if self._arrive():
            self._coming = self._dynamic.moves(self._steps)
            for move in self._coming:
                self._residences[move.layer].evict(move.outgoing)
                self._device_experts[move.layer].move(move)
            self._arrive()

    def _arrive(self) -> bool:
        """Whether none is on its way any more."""
        if not all(self._device_experts[move.layer].arrived() for move in self._coming):
            return False
        for move in self._coming:
            self._residences[move.layer].admit(move.incoming)
        self._moved += len(self._coming)
        self._coming = []
        return True

    def counters(self) -> Mapping[str, int]:
        """Pairs of a token and an expert that the device role served, and experts that moved."""
        served = sum(int(residence.served[1]) for residence in self._residences)
        return {"device_experts": served, "experts_moved": self._moved}


def detach(operators: Sequence[ExpertsOperator]) -> None:
    """All experts live with the host again."""
    for operator in operators:
        operator.residence = operator.device_backend = None


class SharedMemoryExperts:
    """`DeviceExperts` on CPU cores: both roles read the same weights, so nothing is copied when an expert moves."""

    def __init__(self, backend: ExpertsBackend) -> None:
        self.backend = backend

    def move(self, move: ExpertSwap) -> None:
        """See `DeviceExperts`."""

    def arrived(self) -> bool:
        return True

    def finish(self) -> None:
        """See `DeviceExperts`."""
