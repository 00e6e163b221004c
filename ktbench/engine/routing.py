"""Which experts a call runs: split by gate weight, and replayed so that every cell does the same work."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ktbench.engine.workload.routing import route
from ktbench.spec.run_spec import WorkloadSpec
from ktbench.spec.shape import MoEShape

NO_EXPERT = -1


@dataclass(frozen=True, kw_only=True, slots=True)
class Routing:
    """The experts selected in one call for T tokens: `ids` int64 and `gates` float32, both [T, k]."""

    ids: Tensor
    gates: Tensor

    def split(self, lowest: int) -> tuple[Routing, Routing]:
        """Each token's experts without, and only, its `lowest` ones by gate weight."""
        order = self.gates.argsort(dim=-1, descending=True, stable=True)
        kept = order.shape[-1] - lowest
        return self._pick(order[:, :kept]), self._pick(order[:, kept:])

    def split_some(self, lowest: int, tokens: Tensor) -> tuple[Routing, Routing]:
        """The same for `tokens` bool [T]; all experts of the others stay with the first part. -1 is no expert."""
        columns = self.gates.argsort(dim=-1, descending=True, stable=True)[:, self.ids.shape[-1] - lowest :]
        deferred, others = self._pick(columns), ~tokens[:, None]
        kept = deferred.ids.masked_fill(tokens[:, None], -1)
        immediate = Routing(ids=self.ids.scatter(1, columns, kept), gates=self.gates)
        return immediate, Routing(ids=deferred.ids.masked_fill(others, -1), gates=deferred.gates)

    def without(self, pairs: Tensor) -> Routing:
        """The same without the experts at `pairs`, bool [T, k]."""
        return Routing(ids=self.ids.masked_fill(pairs, -1), gates=self.gates)

    def where(self, tokens: Tensor, other: Routing) -> Routing:
        """The same for `tokens`, bool [T, 1], and another routing for the others."""
        return Routing(ids=self.ids.where(tokens, other.ids), gates=self.gates.where(tokens, other.gates))

    def beside(self, other: Routing) -> Routing:
        """Each token's experts of both."""
        return Routing(ids=torch.cat([self.ids, other.ids], 1), gates=torch.cat([self.gates, other.gates], 1))

    def _pick(self, columns: Tensor) -> Routing:
        return Routing(ids=self.ids.gather(1, columns), gates=self.gates.gather(1, columns))


class PassRouting:
    """The routing of one forward pass: `ids` int64 and `gates` float32, both [MoE layers, T, k].

    Its items are the routings of the layers, views of the same memory.
    """

    def __init__(self, ids: Tensor, gates: Tensor) -> None:
        self.ids, self.gates = ids, gates
        self._layers = [Routing(ids=ids[layer], gates=gates[layer]) for layer in range(len(ids))]

    @classmethod
    def of(cls, layers: Sequence[Routing]) -> PassRouting:
        """From one routing for each MoE layer, in order."""
        return cls(torch.stack([layer.ids for layer in layers]), torch.stack([layer.gates for layer in layers]))

    def __len__(self) -> int:
        return len(self._layers)

    def __getitem__(self, layer: int) -> Routing:
        """The routing of MoE layer `layer`, counted from 0."""
        return self._layers[layer]

    def __iter__(self) -> Iterator[Routing]:
        return iter(self._layers)

    def to(self, device: torch.device) -> PassRouting:
        """The same on a device."""
        return PassRouting(self.ids.to(device), self.gates.to(device))

    def clone(self) -> PassRouting:
        """The same in memory of its own."""
        return PassRouting(self.ids.clone(), self.gates.clone())

    def copy_(self, other: PassRouting) -> None:
        """Overwrite this memory, which does not move: recordings read it."""
        self.ids.copy_(other.ids)
        self.gates.copy_(other.gates)

    def chunk(self, shape: tuple[int, ...], first: int, tokens: int) -> PassRouting:
        """The same for tokens `first` to `first + tokens` of every sequence, of all [B, T] = `shape`."""
        parts = (
            one.view(len(one), *shape, -1)[:, :, first : first + tokens].flatten(1, 2) for one in (self.ids, self.gates)
        )
        return PassRouting(*parts)


def from_router(ids: Tensor, gates: Tensor) -> Routing:
    """A router's choice. Families differ in the type of gate weights; bf16 widens to float32 without loss."""
    return Routing(ids=ids.to(torch.int64).contiguous(), gates=gates.float().contiguous())


def synthetic(workload: WorkloadSpec, shape: MoEShape, tokens: int, pass_number: int) -> PassRouting:
    """Routing of one forward pass by the workload's named distribution, with a seed of its own for every layer."""
    kind = workload.routing
    if kind == "model" or kind == "recorded":  # noqa: PLR1714, mypy narrows by this
        raise ValueError(f"workload.routing={kind} is not drawn layer by layer")
    draws = (
        route(kind, tokens, shape.experts, shape.top_k, (workload.seed, pass_number, layer))
        for layer in range(shape.moe_layers)
    )
    return PassRouting.of([Routing(ids=torch.from_numpy(ids), gates=torch.from_numpy(gates)) for ids, gates in draws])


def split_ids(ids: Tensor, at_device: Tensor, out: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
    """Host's and device's ids of `ids` [T, k] int64: [T, k], -1 where the other serves or none is selected.

    `at_device` is bool [E]. Gate weights stay as they are: a pair of id -1 adds nothing. Always the same operations,
    none of which waits for the device or has a shape that depends on data; `out` are buffers for the two.
    """
    hosts, devices = out or (torch.empty_like(ids), torch.empty_like(ids))
    here = at_device.take(ids.clamp(min=0))
    hosts.copy_(ids).masked_fill_(here, NO_EXPERT)
    devices.copy_(ids).masked_fill_(~here, NO_EXPERT)
    return hosts, devices


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

    def split(self, ids: Tensor, out: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        """See `split_ids`; counts the pairs that each serves."""
        hosts, devices = split_ids(ids, self.at_device, out)
        self.served[0].add_((hosts >= 0).sum())
        self.served[1].add_((devices >= 0).sum())
        return hosts, devices

    def evict(self, expert: int) -> None:
        """The host serves this expert from now on."""
        self.at_device[expert] = False

    def admit(self, expert: int) -> None:
        """The device serves this expert from now on."""
        self.at_device[expert] = True
