"""The fused operator: packed experts of a layer, run by the kernel extension on PyTorch's own threads."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from ktbench._kernels import MoE, OpenMPTeam, PackedExperts
from ktbench.core.shape import MoEShape
from ktbench.core.spec import EngineSpec
from ktbench.engine.experts import ExpertMatrices, ExpertStore
from ktbench.engine.routing import Routing


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelChoice:
    """Which kernels run. With both, an expert of at least `amx_min_tokens` tokens runs on AMX, others on AVX-512."""

    avx512: bool = False
    amx: bool = False
    amx_min_tokens: int = 1
    dynamic: bool = False

    @classmethod
    def of(cls, engine: EngineSpec) -> KernelChoice:
        """The kernels behind +v, +m and +d."""
        return cls(avx512=engine.v, amx=engine.m, amx_min_tokens=engine.amx_min_tokens, dynamic=engine.d)


class FusedExperts:
    """Backend and store of one layer: runs and gives back what was packed."""

    def __init__(self, packed: PackedExperts, team: OpenMPTeam) -> None:
        self.choice = KernelChoice(avx512=True)
        self._packed, self._moe = packed, MoE(packed, team)
        self._earlier: Counter[str] = Counter()

    def __call__(self, hidden: Tensor, routing: Routing) -> Tensor:
        """[T, H] bf16 of `hidden` [T, H] bf16."""
        hidden, choice = hidden.contiguous(), self.choice
        output = torch.empty_like(hidden)
        self._moe.forward(
            bits(hidden),
            routing.ids.numpy(),
            routing.gates.numpy(),
            bits(output),
            avx512=choice.avx512,
            amx=choice.amx,
            amx_min_tokens=choice.amx_min_tokens,
            dynamic=choice.dynamic,
        )
        return output

    def move_to(self, team: OpenMPTeam) -> None:
        """Run on other threads from now on; counts go on."""
        self._earlier = self.counters()
        self._moe = MoE(self._packed, team)

    def counters(self) -> Counter[str]:
        """Cumulative counts of this layer's kernels."""
        total = Counter(self._earlier)
        total.update(self._moe.counters())  # where adding Counters would drop those that stand at 0
        return total

    def matrices(self, i: int) -> ExpertMatrices:
        """The weights of expert `i`, unpacked."""
        gate, up, down = (torch.from_numpy(matrix).view(torch.bfloat16) for matrix in self._packed.read_expert(i))
        return ExpertMatrices(gate=gate, up=up, down=down)


class FusedHost:
    """The fused layers of a model and the threads that they share."""

    def __init__(self, threads: int) -> None:
        self._team = OpenMPTeam(threads)
        self._layers: list[FusedExperts] = []

    def pack(self, store: ExpertStore, shape: MoEShape) -> FusedExperts:
        """Packs the experts of one layer, one after the other: `store` need not hold more than one."""
        packed = PackedExperts(shape.experts, shape.hidden, shape.expert_ffn)
        for i in range(shape.experts):
            expert = store(i)
            packed.write_expert(i, bits(expert.gate), bits(expert.up), bits(expert.down), self._team)
        self._layers.append(FusedExperts(packed, self._team))
        return self._layers[-1]

    def choose(self, engine: EngineSpec) -> None:
        """Kernels of all layers from the next call on."""
        choice = KernelChoice.of(engine)
        for layer in self._layers:
            layer.choice = choice

    def resize(self, threads: int) -> None:
        """Run on so many threads from now on."""
        if threads != self._team.threads:
            self._team = OpenMPTeam(threads)
            for layer in self._layers:
                layer.move_to(self._team)

    def counters(self) -> Counter[str]:
        """Cumulative counts of the kernels, summed over layers."""
        total: Counter[str] = Counter()
        for layer in self._layers:
            total.update(layer.counters())
        return total


def bits(tensor: Tensor) -> NDArray[Any]:
    """The memory of a bf16 tensor as uint16: numpy has no bf16."""
    return tensor.detach().view(torch.uint16).numpy()
