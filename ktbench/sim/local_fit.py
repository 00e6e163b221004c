"""Fits the constants of `conf/calibration/ktbench.yaml` on a few measured cells, and judges them on others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ktbench.sim.calibration import Calibration
from ktbench.sim.observation import Observed
from ktbench.sim.simulation import step_seconds
from ktbench.spec.run_spec import RunSpec

_MODEL = "qwen3_30b_a3b"
_ARMS = ("base", "+v+d", "+m+d", "+v+d+l")
_TOKENS_PER_EXPERT = (1, 8, 128, 1024)
# Of a residual for a constant e times its value before: a cell that is 2 % off weighs as much.
_PULL = 0.02


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    """A measured cell, simulated; `fitted` where the constants were fitted on it."""

    spec: RunSpec
    measured_s: float
    simulated_s: float
    fitted: bool

    @property
    def error(self) -> float:
        """Simulated over measured time, less 1."""
        return self.simulated_s / self.measured_s - 1


def judge(observed: Sequence[Observed], cost: Calibration) -> list[Judged]:
    """Every cell simulated on its machine. Raises ValueError for a cell that cannot be, as `step_graph`."""
    return [
        Judged(
            spec=one.spec,
            measured_s=one.step_s,
            simulated_s=step_seconds(one.spec, cost),
            fitted=is_fitted(one.spec),
        )
        for one in observed
    ]


def is_fitted(spec: RunSpec) -> bool:
    """Whether a cell belongs to the fitting set, which is of one model, and of it few kinds of cells.

    layer: bf16, int8 and int4_g32 at 1, 8, 128 and 1,024 tokens per expert. decode: bf16 at depths 64 and 2,048, with
    nothing deferred. prefill from 512 tokens on: int4_g32 with +l, bf16 without.
    """
    if spec.model.name != _MODEL or spec.engine.label not in _ARMS:
        return False
    work = spec.workload
    if work.phase == "layer":
        return spec.precision in ("bf16", "int8", "int4_g32") and spec.tokens_per_expert in _TOKENS_PER_EXPERT
    if work.phase == "decode":
        return spec.precision == "bf16" and work.prompt in (64, 2048)
    return work.prompt >= 512 and spec.precision == ("int4_g32" if spec.engine.packed_dense else "bf16")


def fit(observed: Sequence[Observed], cost: Calibration) -> Calibration:
    """The constants that come nearest to the cells of the fitting set among `observed`: least squares of log ratios.

    Those move whose origin is `fitted`, each within its bounds. The prior values pull a little, so that a constant that
    no cell tells apart stays where it was.
    """
    from scipy.optimize import least_squares

    cells = [one for one in observed if is_fitted(one.spec)]
    names = [name for name, constant in cost.constants.items() if constant.origin == "fitted"]
    before, low, high = (np.log(values) for values in _bounds(cost, names))

    def residuals(logs: NDArray[np.float64]) -> NDArray[np.float64]:
        tried = cost.changed(dict(zip(names, np.exp(logs).tolist(), strict=True)))
        errors = [np.log1p(one.error) for one in judge(cells, tried)]
        return np.array([*errors, *_PULL * (logs - before)])

    found = least_squares(residuals, before, bounds=(low, high), loss="soft_l1", f_scale=0.1, diff_step=0.01)
    return cost.changed(dict(zip(names, np.exp(found.x).round(6).tolist(), strict=True)))


def _bounds(cost: Calibration, names: Sequence[str]) -> tuple[list[float], list[float], list[float]]:
    """Values, lower and upper bounds. Raises ValueError for a constant without bounds."""
    constants = [cost.constants[name] for name in names]
    if missing := [name for name, one in zip(names, constants, strict=True) if one.low is None or one.high is None]:
        raise ValueError(f"calibration {cost.name}: {missing[0]} is to be fitted and has no low and high")
    return (
        [one.value for one in constants],
        [one.low or 0.0 for one in constants],
        [one.high or 0.0 for one in constants],
    )
