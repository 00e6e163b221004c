"""What one call of the routed experts of a layer costs on cores."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ktbench.sim.calibration import Calibration
from ktbench.sim.cores_products import PackedProducts, TorchProducts, Weights
from ktbench.sim.cores_routing import Selections, counts
from ktbench.sim.cores_team import Team
from ktbench.sim.schedule import dynamic_s, static_s
from ktbench.spec.run_spec import Precision, RunSpec
from ktbench.spec.shape import MoEShape
from ktbench.spec.weights import expert_bytes

# Into how many tasks the fused operator cuts an expert, give or take (kernels/moe/call.cpp).
TASKS = 32


@dataclass(frozen=True, kw_only=True, slots=True)
class Experts:
    """The routed experts of a cell, run by a team."""

    spec: RunSpec
    shape: MoEShape
    cost: Calibration
    team: Team

    def seconds(self, drawn: Selections, first: int, last: int) -> float:
        """Mean over the layers drawn, of a call for the selections `first` to `last` of each token."""
        if first == last:
            return 0.0
        calls = [self._call_s(counts(ids[:, first:last])) for ids in drawn]
        return sum(calls) / len(calls)

    def _call_s(self, tokens: NDArray[np.int64]) -> float:
        return self._fused_s(tokens) if self.spec.engine.fused else self._torch_s(tokens)

    def _torch_s(self, tokens: NDArray[np.int64]) -> float:
        """One after the other through Transformers' module (its loop over the experts that are hit)."""
        products = TorchProducts(cost=self.cost, team=self.team)
        fixed_ms = self.cost["torch_call_ms"] + len(tokens) * self.cost["torch_expert_ms"]
        return fixed_ms * 1e-3 + float(products.seconds(self._weights("bf16"), tokens).sum())

    def _fused_s(self, tokens: NDArray[np.int64]) -> float:
        """The tasks of all experts, dealt to threads as +d says."""
        engine, threads = self.spec.engine, self.team.cores
        products = PackedProducts(cost=self.cost, team=self.team, engine=engine, precision=self.spec.precision)
        of_one_thread = threads * products.seconds(self._weights(self.spec.precision), tokens)
        dealt = (dynamic_s if engine.dynamic else static_s)(of_one_thread, TASKS, threads)
        return self.cost["fused_call_us"] * 1e-6 + float(dealt)

    def _weights(self, precision: Precision) -> Weights:
        return Weights(params=self.shape.expert_params, nbytes=expert_bytes(self.shape, precision))
