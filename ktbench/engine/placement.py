"""Expert placement: which routed experts the device role runs, chosen before the run or moved between steps.

Letters: T tokens of a call, k experts of a token, E experts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from math import sqrt
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ktbench.engine.routing import PassRouting
from ktbench.engine.workload.recorded import ActivationProfile, count_selections, read_profile
from ktbench.spec.engine import PlacementSpec
from ktbench.spec.run_spec import ModelSpec
from ktbench.spec.shape import MoEShape

if TYPE_CHECKING:
    from ktbench.engine.experts import Backend, ExpertsOperator

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
    return _BLIND[placement.policy](count, shape, np.random.default_rng(placement.seed))


def _frequency(count: int, shape: MoEShape, profile: ActivationProfile | None) -> Placed:
    """The highest counts; of equal ones the earlier layer's and the lower id."""
    sizes = (shape.moe_layers, shape.experts)
    if profile is None or profile.counts.shape != sizes:
        has = "none" if profile is None else f"one of counts {list(profile.counts.shape)}"
        raise ValueError(f"engine.placement.policy=frequency: needs a profile of counts {list(sizes)}, there is {has}")
    placed = np.zeros(sizes, dtype=np.bool_)
    placed.ravel()[np.argsort(-profile.counts, axis=None, kind="stable")[:count]] = True
    return placed


def _uniform(count: int, shape: MoEShape, rng: np.random.Generator) -> Placed:
    each, more = divmod(count, shape.moe_layers)
    return _draw([each + (layer < more) for layer in range(shape.moe_layers)], shape, rng)


def _front_loading(count: int, shape: MoEShape, rng: np.random.Generator) -> Placed:
    left = count - shape.experts * np.arange(shape.moe_layers)
    return _draw(np.clip(left, 0, shape.experts).tolist(), shape, rng)


def _random(count: int, shape: MoEShape, rng: np.random.Generator) -> Placed:
    placed = np.arange(shape.moe_layers * shape.experts) < count
    return rng.permutation(placed).reshape(shape.moe_layers, shape.experts)


def _draw(counts: list[int], shape: MoEShape, rng: np.random.Generator) -> Placed:
    """`counts[layer]` experts of each layer."""
    return np.stack([rng.permutation(np.arange(shape.experts) < count) for count in counts])


_BLIND: dict[str, Callable[[int, MoEShape, np.random.Generator], Placed]] = {
    "uniform": _uniform,
    "front_loading": _front_loading,
    "random": _random,
    "dynamic": _uniform,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Move:
    """In MoE layer `layer` expert `come` moves to the device and `go` makes room for it."""

    layer: int
    come: int
    go: int


class DynamicPlacement:
    """Follows what is selected: hot experts of the host change places with cold ones of the device, in their layer.

    KTransformers chooses anew from the routing of each long prefill; this counts every step. A selection's weight
    halves with every 16 selections per expert of its layer, so the average expert holds a heat of 23. Two experts
    change places where their heats differ by more than sqrt(sum of both): such a difference is 1.4 standard deviations
    of chance, and the way back needs as much again, so that equally hot experts stay where they are.
    """

    def __init__(self, at_device: Placed, *, every: int, most: int | None = None) -> None:
        """From the placement `at_device` [MoE layers, experts] on; `most` moves at a time, None for one per layer."""
        self.at_device = at_device.copy()
        self.every = every
        self.most = len(at_device) if most is None else most
        self._heat = np.zeros(at_device.shape)

    def note(self, layer: int, ids: NDArray[np.integer[Any]]) -> None:
        """Count what a call of MoE layer `layer` selected: `ids` [T, k], negative where no expert is selected."""
        heat = self._heat[layer]
        seen = count_selections(ids, len(heat))
        heat *= 0.5 ** (seen.sum() / (_HALF_LIFE * len(heat)))
        heat += seen

    def moves(self, now: int) -> list[Move]:
        """What to move after step `now`: every `every` steps the swaps that gain most, else nothing.

        They count as carried out: `at_device` has them done.
        """
        if now % self.every:
            return []
        gains = sorted(self._swaps(), key=lambda swap: -swap[0])
        chosen = [move for _, move in islice(gains, self.most)]
        for move in chosen:
            self.at_device[move.layer, move.come] = True
            self.at_device[move.layer, move.go] = False
        return chosen

    def _swaps(self) -> Iterator[tuple[float, Move]]:
        """Gain in heat and move, of every swap that gains: hottest against coldest, then the next two."""
        for layer, (heat, here) in enumerate(zip(self._heat, self.at_device, strict=True)):
            hottest_first = np.argsort(-heat, kind="stable")
            comes, goes = hottest_first[~here[hottest_first]], hottest_first[here[hottest_first]][::-1]
            for come, go in zip(comes.tolist(), goes.tolist(), strict=False):
                gain = float(heat[come] - heat[go])
                if gain <= sqrt(heat[come] + heat[go]):
                    break
                yield gain, Move(layer=layer, come=come, go=go)


NO_EXPERT = -1


class Residence:
    """Where the experts of one layer live: `at_device` bool [E], and `served` int64 [2], pairs of host and device.

    Both are static memory that is changed in place only, so that a captured CUDA graph sees every change.
    """

    def __init__(self, at_device: Tensor) -> None:
        """Of `at_device` bool [E], copied, on the device that `split` is to run on. Raises ValueError for others."""
        if at_device.dtype != torch.bool or at_device.ndim != 1:
            raise ValueError(f"at_device is {at_device.dtype} {list(at_device.shape)}, must be bool [experts]")
        self.at_device = at_device.clone()
        self.served = torch.zeros(2, dtype=torch.int64, device=at_device.device)
        self._no_expert = torch.full((), NO_EXPERT, dtype=torch.int64, device=at_device.device)

    def split(self, ids: Tensor, out: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        """Host's and device's ids of `ids` [T, k] int64: [T, k], -1 where the other serves or none is selected.

        Gate weights stay as they are: a pair of id -1 adds nothing. Always the same operations, none of which waits
        for the device or has a shape that depends on data; `out` are buffers for the two.
        """
        hosts, devices = out or (torch.empty_like(ids), torch.empty_like(ids))
        here = self.at_device.take(ids.clamp(min=0))
        torch.where(here, self._no_expert, ids, out=hosts)
        torch.where(here, ids, self._no_expert, out=devices)
        self.served[0].add_((hosts >= 0).sum())
        self.served[1].add_((devices >= 0).sum())
        return hosts, devices

    def move(self, moves: Iterable[Move]) -> None:
        """Carry out moves of this layer."""
        for move in moves:
            self.at_device[move.come] = True
            self.at_device[move.go] = False


class DeviceExperts(Protocol):
    """The device role's side of one layer: what runs the experts that live there."""

    @property
    def backend(self) -> Backend:
        """Runs them."""

    def move(self, move: Move) -> None:
        """An expert comes and another goes; called between steps."""


# The home of a layer's experts, which are marked in [E].
MakeDeviceExperts = Callable[["ExpertsOperator", NDArray[np.bool_]], DeviceExperts]


class DevicePlacement:
    """The placement of one cell on `device`."""

    def __init__(
        self,
        placement: PlacementSpec,
        model: ModelSpec,
        operators: Sequence[ExpertsOperator],
        settle: MakeDeviceExperts,
        device: torch.device,
    ) -> None:
        profile = None if placement.profile is None else read_profile(placement.profile, model)
        at_device = place_experts(placement, model.shape, profile)
        self._residences = [Residence(torch.from_numpy(layer).to(device)) for layer in at_device]
        self._homes: dict[int, DeviceExperts] = {}
        self._dynamic = DynamicPlacement(at_device, every=placement.every) if placement.policy == "dynamic" else None
        self._steps = self._moved = 0
        for number in np.flatnonzero(at_device.any(axis=1)).tolist():
            self._homes[number] = settle(operators[number], at_device[number])

    def enter(self, operators: Sequence[ExpertsOperator]) -> None:
        """From now on experts live where they lived when this placement was left."""
        detach(operators)
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


def detach(operators: Sequence[ExpertsOperator]) -> None:
    """All experts live with the host again."""
    for operator in operators:
        operator.residence = operator.at_device = None


class SameMemory:
    """A home on CPU cores: both roles read the same weights, so nothing is carried when an expert moves."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend

    def move(self, move: Move) -> None:
        """See `DeviceExperts`."""
