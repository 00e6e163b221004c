"""Which routed experts the device role runs: chosen before the run, or moved between steps. Imports no PyTorch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ktbench.engine.workload.recorded import ActivationProfile, count_selections
from ktbench.spec.engine import PlacementSpec
from ktbench.spec.shape import MoEShape

# A count weighs half after so many selections per expert of its layer: long enough to separate hot experts from chance.
_HALF_LIFE = 16.0

Placed = NDArray[np.bool_]


def place_experts(placement: PlacementSpec, shape: MoEShape, profile: ActivationProfile | None = None) -> Placed:
    """[MoE layers, experts]: True where an expert lives with the device, which `ratio` of all do, rounded.

    The policies are those of KTransformers' expert placement table (its tutorial on CPU-GPU expert scheduling):
    `uniform` has equally many in every layer, the first layers one more where that does not come out even, `frequency`
    those that `profile` counts highest in the whole model, `front_loading` layer after layer from the first MoE layer
    until none are left to place, `random` any. `dynamic` begins as `uniform`. Where nothing says which experts of a
    layer, a draw seeded by `seed` does; KTransformers takes the lowest ids. It rounds the total down.
    Raises ValueError where the ratio is less than one expert and where `frequency` has no profile of these layers.
    """
    count = round(placement.ratio * shape.moe_layers * shape.experts)
    if placement.policy == "host":
        return np.zeros((shape.moe_layers, shape.experts), dtype=np.bool_)
    if count == 0:
        raise ValueError(
            f"engine.placement.ratio={placement.ratio}: is less than one of {shape.moe_layers * shape.experts} experts "
            f"({shape.moe_layers} MoE layers of {shape.experts})"
        )
    if placement.policy == "frequency":
        return _frequency(count, shape, profile)
    return _drawn(placement.policy, count, shape, np.random.default_rng(placement.seed))


def _frequency(count: int, shape: MoEShape, profile: ActivationProfile | None) -> Placed:
    """The highest counts; of equal ones the earlier layer's and the lower id."""
    sizes = (shape.moe_layers, shape.experts)
    if profile is None or profile.counts.shape != sizes:
        has = "none" if profile is None else f"one of counts {list(profile.counts.shape)}"
        raise ValueError(f"engine.placement.policy=frequency: needs a profile of counts {list(sizes)}, there is {has}")
    placed = np.zeros(sizes, dtype=np.bool_)
    placed.ravel()[np.argsort(-profile.counts, axis=None, kind="stable")[:count]] = True
    return placed


def _drawn(policy: str, count: int, shape: MoEShape, rng: np.random.Generator) -> Placed:
    """Any `count` experts, of each layer as many as the policy says."""
    layers, experts = shape.moe_layers, shape.experts
    if policy == "random":
        return rng.permutation(np.arange(layers * experts) < count).reshape(layers, experts)
    if policy == "front_loading":
        counts = np.clip(count - experts * np.arange(layers), 0, experts)
    else:
        counts = count // layers + (np.arange(layers) < count % layers)
    return np.stack([rng.permutation(np.arange(experts) < of_layer) for of_layer in counts])


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpertSwap:
    """In MoE layer `layer` expert `incoming` moves to the device and `outgoing` makes room for it."""

    layer: int
    incoming: int
    outgoing: int


class DynamicPlacement:
    """Follows what is selected: hot experts of the host change places with cold ones of the device, in their layer.

    KTransformers chooses anew from the routing of each long prefill; this counts every step. A selection's weight
    halves with every 16 selections per expert of its layer, so the average expert holds a heat of 23. Two experts
    change places where their heats differ by more than sqrt(sum of both): such a difference is 1.4 standard deviations
    of chance, and the way back needs as much again, so that equally hot experts stay where they are.
    """

    def __init__(self, at_device: Placed, *, every: int) -> None:
        """From the placement `at_device` [MoE layers, experts] on; at most as many moves at a time as layers."""
        self.at_device = at_device.copy()
        self.every = every
        self._heat = np.zeros(at_device.shape)

    def note(self, layer: int, ids: NDArray[np.integer[Any]]) -> None:
        """Count what a call of MoE layer `layer` selected: `ids` [T, k], negative where no expert is selected."""
        heat = self._heat[layer]
        seen = count_selections(ids, len(heat))
        heat *= 0.5 ** (seen.sum() / (_HALF_LIFE * len(heat)))
        heat += seen

    def moves(self, now: int) -> list[ExpertSwap]:
        """What to move after step `now`: every `every` steps the swaps that gain most, else nothing.

        They count as carried out: `at_device` has them done.
        """
        if now % self.every:
            return []
        gains = sorted(self._swaps(), key=lambda swap: -swap[0])
        chosen = [move for _, move in gains[: len(self.at_device)]]
        for move in chosen:
            self.at_device[move.layer, move.incoming] = True
            self.at_device[move.layer, move.outgoing] = False
        return chosen

    def _swaps(self) -> Iterator[tuple[float, ExpertSwap]]:
        """Gain in heat and move, of every swap that gains: hottest against coldest, then the next two."""
        for layer, (heat, here) in enumerate(zip(self._heat, self.at_device, strict=True)):
            hottest_first = np.argsort(-heat, kind="stable")
            coming, going = (
                hottest_first[~here[hottest_first]],
                hottest_first[here[hottest_first]][::-1],
            )
            for incoming, outgoing in zip(coming.tolist(), going.tolist(), strict=False):
                gain = float(heat[incoming] - heat[outgoing])
                if gain <= sqrt(heat[incoming] + heat[outgoing]):
                    break
                yield gain, ExpertSwap(layer=layer, incoming=incoming, outgoing=outgoing)
