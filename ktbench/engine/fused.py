"""The fused operator: packed experts of a layer, run by the kernel extension on PyTorch's own threads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from ktbench._kernels import MoE, OpenMPTeam, PackedExperts
from ktbench.core.engine import EngineSpec
from ktbench.core.shape import MoEShape
from ktbench.core.spec import RunSpec
from ktbench.engine.experts import ExpertMatrices, ExpertStore
from ktbench.engine.packing import Packing
from ktbench.engine.protocol import Unsupported
from ktbench.engine.routing import Routing


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelChoice:
    """Which kernels run. With both, an expert of at least `amx_min_tokens` tokens runs on AMX, others on AVX-512."""

    avx512: bool = False
    amx: bool = False
    amx_min_tokens: int = 1
    dynamic: bool = False
    numa: bool = False

    @classmethod
    def of(cls, engine: EngineSpec) -> KernelChoice:
        """The kernels behind +v, +m, +d and +n."""
        return cls(avx512=engine.v, amx=engine.m, amx_min_tokens=engine.amx_min_tokens, dynamic=engine.d, numa=engine.n)


class FusedExperts:
    """Backend and store of one layer: runs and gives back what was packed."""

    def __init__(self, packed: PackedExperts, team: OpenMPTeam) -> None:
        self.choice = KernelChoice(avx512=True)
        self._packed, self._team, self._moe = packed, team, MoE(packed, team)
        self._earlier: Counter[str] = Counter()

    def __call__(self, hidden: Tensor, routing: Routing) -> Tensor:
        """[T, H] bf16 of `hidden` [T, H] bf16."""
        hidden = hidden.contiguous()
        return self.bind(hidden, routing, torch.empty_like(hidden))()

    def bind(self, hidden: Tensor, routing: Routing, output: Tensor) -> Callable[[], Tensor]:
        """The call on `hidden` [T, H] that writes `output` [T, H] and gives it back, both bf16 and contiguous.

        Nothing but the operator's work is left to do in it; the kernels are those chosen when it is bound.
        """
        arrays = bits(hidden), routing.ids.numpy(), routing.gates.numpy(), bits(output)
        forward, choice = self._moe.forward, self.choice

        def call() -> Tensor:
            forward(
                *arrays,
                avx512=choice.avx512,
                amx=choice.amx,
                amx_min_tokens=choice.amx_min_tokens,
                dynamic=choice.dynamic,
                numa=choice.numa,
            )
            return output

        return call

    def move_to(self, team: OpenMPTeam) -> None:
        """Run on other threads from now on; counts go on."""
        self._earlier = self.counters()
        self._team, self._moe = team, MoE(self._packed, team)

    def counters(self) -> Counter[str]:
        """Cumulative counts of this layer's kernels."""
        total = Counter(self._earlier)
        total.update(self._moe.counters())  # where adding Counters would drop those that stand at 0
        return total

    def matrices(self, i: int) -> ExpertMatrices:
        """The weights of expert `i` as they are stored, float32."""
        gate, up, down = (torch.from_numpy(matrix) for matrix in self._packed.read_expert(i, self._team))
        return ExpertMatrices(gate=gate, up=up, down=down)


class FusedHost:
    """The fused layers of a model, packed alike, and the threads that they share."""

    def __init__(self, threads: int, packing: Packing | None = None) -> None:
        self.packing = packing or Packing()
        self._team = OpenMPTeam(threads)
        self._layers: list[FusedExperts] = []

    def pack(self, store: ExpertStore, shape: MoEShape) -> FusedExperts:
        """Packs the experts of one layer, one after the other: `store` need not hold more than one."""
        packing = self.packing
        packed = PackedExperts(
            shape.experts,
            shape.hidden,
            shape.expert_ffn,
            precision=packing.precision,
            domains=packing.domains,
            nodes=packing.nodes,
        )
        for i in range(shape.experts):
            expert = store(i)
            packed.write_expert(i, bits(expert.gate), bits(expert.up), bits(expert.down), self._team)
        self._layers.append(FusedExperts(packed, self._team))
        return self._layers[-1]

    def require(self, spec: RunSpec) -> None:
        """Raises Unsupported for +n without domains or threads for it, ValueError where other weights are packed."""
        if spec.engine.n and self.packing.domains < 2:
            raise Unsupported("+n: the cores lie on one NUMA node, engine.domains=2 splits them into logical domains")
        if spec.engine.n and self._team.threads < self.packing.domains:
            raise Unsupported(f"+n: {self.packing.domains} domains need a thread each, there are {self._team.threads}")
        for name, asked, packed in (
            ("precision", spec.precision, self.packing.precision),
            ("engine.domains", spec.engine.domains or self.packing.domains, self.packing.domains),
        ):
            if asked != packed:
                raise ValueError(f"{name}={asked} was asked for, the experts are packed with {packed}")

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
