"""Routed experts of a few tokens on the host: their weights are read, and a call costs what it costs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ktbench.sim.calibration import Calibration
from ktbench.sim.host_prefill import HostPrefill
from ktbench.sim.placement import ALL_ON_HOST, Coverage
from ktbench.sim.sizes import Sizes
from ktbench.spec.machine import MachineSpec
from ktbench.spec.run_spec import RunSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class HostDecode:
    """One layer's experts on all domains of a machine, in decode."""

    spec: RunSpec
    machine: MachineSpec
    cost: Calibration
    sizes: Sizes

    def seconds(self, loads: NDArray[np.float64], covered: Coverage = ALL_ON_HOST) -> float:
        """One call in which as many experts as `loads` is long get so many tokens each.

        What the device serves is not read here, and where it serves all there is no call.
        """
        if not len(loads):
            return 0.0
        busy = self._expert_s(loads) * self._schedule
        call_s = (self.cost["call_ms"] + (0.0 if self._bound else self.cost["apart_ms"])) * 1e-3
        return float(busy * (1.0 - covered.device) + call_s * covered.any_on_host)

    @property
    def _bound(self) -> bool:
        """Whether threads stay with the memory they read."""
        return self.spec.engine.numa or self.machine.domains == 1

    @property
    def _read_bytes_per_s(self) -> float:
        """Unbound threads read half from their own domain and half from another: the harmonic mean."""
        near, far = self.machine.read_gb_per_s, self.machine.remote_gb_per_s
        each = near if self._bound else 2 / (1 / near + 1 / far)
        return self.cost["decode_stream"] * self.machine.domains * each * 1e9

    @property
    def _kernel(self) -> float:
        """AMX alone takes longer at one token than AVX-512, which the hybrid takes there (section 3.2)."""
        engine = self.spec.engine
        return self.cost["amx_one_token"] if engine.amx and not engine.avx512 else 1.0

    @property
    def _schedule(self) -> float:
        return 1.0 if self.spec.engine.dynamic else self.cost["decode_static"]

    def _expert_s(self, loads: NDArray[np.float64]) -> float:
        """All experts: their weights are read, and arithmetic of more than one token overlaps with that in part."""
        read_s = self.sizes.expert_bytes / self._read_bytes_per_s
        if loads.max() <= 1:
            return len(loads) * read_s * self._kernel
        many = HostPrefill(spec=self.spec, machine=self.machine, cost=self.cost, sizes=self.sizes)
        return float(np.maximum(read_s * self._kernel, many.times(loads, read_s).expert_s).sum())
