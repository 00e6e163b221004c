"""How many experts `deferral=auto` defers."""

from __future__ import annotations

from ktbench.sim.calibration import Calibration
from ktbench.sim.deferral import LEAST_ON_TIME, with_deferral
from ktbench.sim.steps import step_seconds
from ktbench.spec.run_spec import RunSpec

# More deferral than this gains less than anyone would give accuracy for.
_WORTH = 0.005


def choose(spec: RunSpec, cost: Calibration) -> int:
    """The smallest number of deferred experts that no larger one is faster than: the host has no more gaps to fill.

    KTransformers, section 4.2: the smallest number that keeps the CPU busy, with two experts on time at least.
    """
    most = max(spec.model.shape.top_k - LEAST_ON_TIME, 0)
    steps_s = [step_seconds(with_deferral(spec, count), cost) for count in range(most + 1)]
    return next(count for count, one in enumerate(steps_s) if one <= min(steps_s) * (1 + _WORTH))
