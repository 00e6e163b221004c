"""Routed experts through PyTorch, one after the other: Fiddler's scheme, as the paper's baseline runs it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ktbench.sim.calibration import Calibration
from ktbench.sim.sizes import Sizes
from ktbench.spec.machine import MachineSpec

_BF16 = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class HostBase:
    """One layer's experts, each a module whose matrix products run on the cores of one domain's bandwidth."""

    machine: MachineSpec
    cost: Calibration
    sizes: Sizes

    def seconds(self, loads: NDArray[np.float64], *, prefill: bool) -> float:
        """One call, `loads` being the tokens of each active expert.

        In prefill numbers of rows are new to oneDNN, and activations are gathered and added up.
        """
        if not len(loads):
            return 0.0
        read = self.sizes.expert_bytes / (self.cost["base_stream"] * self.machine.read_gb_per_s * 1e9)
        fixed = (self.cost["base_expert_ms"] + (self.cost["base_new_ms"] if prefill else 0.0)) * 1e-3
        total = len(loads) * (read + fixed) + float(loads.sum()) * self.sizes.expert_flops / self._peak
        if prefill:
            total += float(loads.sum()) * self.sizes.hidden * _BF16 * 1e-6 * self.cost["base_moved_ms_per_mb"] * 1e-3
        return total

    @property
    def _peak(self) -> float:
        """PyTorch takes AMX where there is any."""
        amx = self.machine.amx_tflops
        vector = self.cost["base_vector_peak"] * self.machine.vector_tflops
        return (self.cost["base_peak"] * amx if amx else vector) * 1e12
