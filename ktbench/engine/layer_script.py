"""What the steps of a layer workload are given: tokens, and how they are spread over experts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ktbench.engine.routing import Routing
from ktbench.engine.workload.routing import layer_selections
from ktbench.spec.run_spec import WorkloadSpec
from ktbench.spec.shape import MoEShape

# Numbers by which the tokens of one step are ahead of those of the step before: whole cache lines, and no row is one of
# another step at any width of a real model.
_AHEAD = 32 * 97


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerStep:
    """One step: `hidden` [T, H] bf16, `gates` [T, k]; `ranks` [T, k] count the experts selected, from 0 to `active`."""

    hidden: Tensor
    gates: Tensor
    ranks: NDArray[np.int64]
    active: int

    @property
    def ranked(self) -> Routing:
        """The routing, experts by rank."""
        return Routing(ids=torch.from_numpy(self.ranks), gates=self.gates)


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerScript:
    """The steps of a workload and the memory [T, H] that their outputs go to."""

    workload: WorkloadSpec
    steps: tuple[LayerStep, ...]
    output: Tensor


def write_layer_script(workload: WorkloadSpec, shape: MoEShape) -> LayerScript:
    """Seeded steps, other tokens in each. Raises ValueError for routing that cannot be had, see `layer_selections`."""
    selections = layer_selections(workload, shape)
    size = (workload.batch, shape.hidden)
    numbers = _normal(workload.batch * shape.hidden + _AHEAD * len(selections), workload.seed)
    steps = []
    for number, (ids, gates) in enumerate(selections):
        chosen, ranks = np.unique(ids, return_inverse=True)
        hidden = numbers[_AHEAD * number :][: workload.batch * shape.hidden].view(size)
        ranks = ranks.reshape(ids.shape).astype(np.int64)
        steps.append(LayerStep(hidden=hidden, gates=torch.from_numpy(gates), ranks=ranks, active=len(chosen)))
    return LayerScript(workload=workload, steps=tuple(steps), output=torch.empty(size, dtype=torch.bfloat16))


def _normal(count: int, seed: int) -> Tensor:
    """Normal numbers in bf16: what a norm before the experts gives."""
    numbers = np.random.default_rng(seed).standard_normal(count, dtype=np.float32)
    return torch.from_numpy(numbers).bfloat16()
