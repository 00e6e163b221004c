"""Which experts a call runs: split by gate weight, and replayed so that every cell does the same work."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ktbench.engine.workload.routing import route
from ktbench.spec.run_spec import WorkloadSpec
from ktbench.spec.shape import MoEShape


@dataclass(frozen=True, kw_only=True, slots=True)
class Routing:
    """The experts selected in one call for T tokens: `ids` int64 and `gates` float32, both [T, k]."""

    ids: Tensor
    gates: Tensor

    def to(self, device: torch.device) -> Routing:
        """The same on a device."""
        return Routing(ids=self.ids.to(device), gates=self.gates.to(device))

    def split(self, lowest: int) -> tuple[Routing, Routing]:
        """Each token's experts without, and only, its `lowest` ones by gate weight."""
        order = self.gates.argsort(dim=-1, descending=True, stable=True)
        kept = order.shape[-1] - lowest
        return self._pick(order[:, :kept]), self._pick(order[:, kept:])

    def chunk(self, shape: tuple[int, ...], first: int, tokens: int) -> Routing:
        """The same for tokens `first` to `first + tokens` of every sequence, of all [B, T] = `shape`."""
        ids, gates = (one.view(*shape, -1)[:, first : first + tokens] for one in (self.ids, self.gates))
        return Routing(ids=ids.reshape(-1, ids.shape[-1]), gates=gates.reshape(-1, gates.shape[-1]))

    def _pick(self, columns: Tensor) -> Routing:
        return Routing(ids=self.ids.gather(1, columns), gates=self.gates.gather(1, columns))


# One Routing for each MoE layer, in order: what one forward pass replays.
PassRouting = list[Routing]


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
    return [Routing(ids=torch.from_numpy(ids), gates=torch.from_numpy(gates)) for ids, gates in draws]
