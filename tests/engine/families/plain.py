"""The same models in plain Transformers, and Expert Deferral written from its formula around their modules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ktbench.engine.forms import is_experts
from ktbench.engine.synthetic import SyntheticSource, WeightPool
from ktbench.spec.run_spec import ModelSpec, WorkloadSpec
from tests.engine.prompts import together

# What one call of an experts module was given: ids and gate weights, both [T, k].
Chosen = tuple[Tensor, Tensor]


def build(model: ModelSpec) -> PreTrainedModel:
    """The synthetic weights of a model in an untouched network of Transformers."""
    source, pool = SyntheticSource(model), WeightPool.of(model)
    source.fill()
    for name, module in source.network.named_modules():
        if is_experts(module):
            draw_experts(module, name, pool)
    return source.network


def draw_experts(module: nn.Module, name: str, pool: WeightPool) -> None:
    """Give memory and seeded numbers to one experts module, parameter by parameter."""
    module.to_empty(device="cpu", recurse=False)
    for key, parameter in module.named_parameters(recurse=False):
        for i in range(len(parameter)):
            pool.fill(parameter[i], f"{name}.{i}.{key}")


def experts_of(network: PreTrainedModel) -> list[nn.Module]:
    """Experts modules in the order of their layers."""
    return [module for module in network.modules() if is_experts(module)]


@dataclass
class Late:
    """Runs a network with each token's `late` lowest experts deferred to the next MoE layer, or dropped.

    The routing of every step is that of the network as it is, or with `anew` its own. `last_defers` is a mutant: the
    last layer defers as well.
    """

    network: PreTrainedModel
    late: int
    drop: bool = False
    last_defers: bool = False
    anew: bool = False
    step: int = -1  # before the first step, when decode runs its prompt, nothing is late
    chosen: list[list[Chosen]] = field(default_factory=list)
    deferred: Tensor | None = None

    def logits(self, work: WorkloadSpec) -> list[Tensor]:
        """Logits of each step."""
        return self.run(lambda begin: together(self.network, work, begin))

    def run(self, decode: Callable[[Callable[[int], None]], list[Tensor]]) -> list[Tensor]:
        """What `decode` gives, which runs the network and calls its argument with the number of each step before it."""
        modules = experts_of(self.network)
        whole = [module.forward for module in modules]
        try:
            if not self.anew:
                self._patch(modules, self._watched, whole)
                decode(self._begin)
            self.step = -1
            self._patch(modules, self._split, whole)
            return decode(self._begin)
        finally:
            for module in modules:
                del module.forward

    def _patch(self, modules: list[nn.Module], by: Callable[..., Tensor], whole: list[Callable[..., Tensor]]) -> None:
        for number, module in enumerate(modules):
            module.forward = partial(by, number, number == len(modules) - 1, whole[number])

    def _begin(self, step: int) -> None:
        self.step = step
        if len(self.chosen) == step:
            self.chosen.append([])

    def _watched(
        self, _number: int, _is_last: bool, experts: Callable[..., Tensor], hidden: Tensor, ids: Tensor, gates: Tensor
    ) -> Tensor:
        if self.step >= 0:
            self.chosen[self.step].append((ids, gates))
        return experts(hidden, ids, gates)

    def _split(
        self, number: int, is_last: bool, experts: Callable[..., Tensor], hidden: Tensor, ids: Tensor, gates: Tensor
    ) -> Tensor:
        """R_imm[l](x_l) + R_def[l-1](x_[l-1]); the last layer runs all: R_all[L](x_L) + R_def[L-1](x_[L-1])."""
        if self.step < 0:
            return experts(hidden, ids, gates)
        if not self.anew:
            ids, gates = self.chosen[self.step][number]
        worst_first = torch.tensor(
            [sorted(range(len(row)), key=lambda column, w=row: (w[column], -column)) for row in gates.tolist()]
        )
        deferred, immediate = worst_first[:, : self.late], worst_first[:, self.late :]

        def run(columns: Tensor) -> Tensor:
            return experts(hidden, ids.gather(1, columns), gates.gather(1, columns))

        if self.drop:
            return run(immediate)
        before = 0 if number == 0 else self.deferred
        if is_last and not self.last_defers:
            return experts(hidden, ids, gates) + before
        self.deferred = run(deferred)
        return run(immediate) + before
