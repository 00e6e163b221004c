"""What products with weights cost on cores: through our packed kernels, and through PyTorch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ktbench.sim.calibration import Calibration
from ktbench.sim.cores_team import AMX, VECTOR, Team
from ktbench.spec.engine import EngineSpec
from ktbench.spec.run_spec import Dtype, Precision

Seconds = NDArray[np.float64]
_INT4: tuple[Precision, ...] = ("int4_g32", "int4_g64", "int4_g128", "q4_0")


@dataclass(frozen=True, kw_only=True, slots=True)
class Weights:
    """A set of weights that is read as a whole: `params` of them in `nbytes`."""

    params: int
    nbytes: float


@dataclass(frozen=True, kw_only=True, slots=True)
class PackedProducts:
    """Our kernels on packed weights of a precision, by one team."""

    cost: Calibration
    team: Team
    engine: EngineSpec
    precision: Precision

    def seconds(self, weights: Weights, rows: NDArray[np.int64]) -> Seconds:
        """[N] seconds of products of one set of weights with each number of rows (above 0)."""
        few, many = (VECTOR if self.engine.avx512 else AMX), (AMX if self.engine.amx else VECTOR)
        seconds: Seconds = np.where(
            rows >= self.engine.amx_min_tokens, self._on(many, weights, rows), self._on(few, weights, rows)
        )
        return seconds

    def _on(self, unit: str, weights: Weights, rows: NDArray[np.int64]) -> Seconds:
        """Reading and arithmetic overlap in part; int4 is unpacked once, whatever the number of rows."""
        cost, dtype = self.cost, self._dtype
        reading = weights.nbytes / (self.team.read_bytes_per_s * cost[f"{unit}_read"])
        multiplying = 2 * weights.params * rows / (self.team.peaks[unit, dtype] * cost[f"{unit}_{dtype}_peak"])
        unpacking = self._unpacking_s(unit, weights)
        return soft_maximum(reading + unpacking, multiplying, cost[f"{unit}_{dtype}_overlap"])

    def _unpacking_s(self, unit: str, weights: Weights) -> float:
        if self.precision not in _INT4:
            return 0.0
        return weights.params / (self.team.cores * self.cost[f"{unit}_unpacks_g_per_s"] * 1e9)

    @property
    def _dtype(self) -> Dtype:
        return "bf16" if self.precision == "bf16" else "int8"


@dataclass(frozen=True, kw_only=True, slots=True)
class TorchProducts:
    """PyTorch's linear layers (oneDNN) on bf16 weights, by one team."""

    cost: Calibration
    team: Team

    def seconds(self, weights: Weights, rows: NDArray[np.int64]) -> Seconds:
        """See `PackedProducts.seconds`."""
        cost, unit = self.cost, self.team.torch_unit
        reading = weights.nbytes / (self.team.read_bytes_per_s * cost["torch_read"])
        rate = self.team.peaks[unit, "bf16"] * cost[f"torch_{unit}_peak"]
        return soft_maximum(reading, 2 * weights.params * rows / rate, cost["torch_overlap"])


def soft_maximum(reading: float, computing: Seconds, overlap: float) -> Seconds:
    """The norm of both times: their sum at an overlap of 1, the larger of them from large ones on."""
    seconds: Seconds = (reading**overlap + computing**overlap) ** (1 / overlap)
    return seconds
