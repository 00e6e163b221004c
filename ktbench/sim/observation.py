"""A published number as the simulator is held against it."""

from __future__ import annotations

from dataclasses import dataclass
from math import log
from typing import Literal

from ktbench.sim.calibration import Calibration
from ktbench.sim.deferral import with_deferral
from ktbench.sim.executor import busy_share
from ktbench.sim.steps import step_graph, step_seconds
from ktbench.spec.run_spec import RunSpec

# Seconds of a step; the share of it in which the host works; the share that deferral saves of it.
Kind = Literal["step_s", "host_busy", "time_saved"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Observation:
    """`value` is what was published of a cell, as `kind` says; `id` and `figure` are those of the published number."""

    id: str
    figure: str
    spec: RunSpec
    kind: Kind
    value: float

    @property
    def model(self) -> str:
        """The model's name."""
        return self.spec.model.name

    @property
    def is_base(self) -> bool:
        """Whether Fiddler's scheme ran."""
        return not self.spec.engine.fused


def simulated_value(observation: Observation, cost: Calibration) -> float:
    """What the simulator says in place of `Observation.value`."""
    spec = observation.spec
    if observation.kind == "host_busy":
        return busy_share(step_graph(spec, cost).tasks, "host")
    step_s = step_seconds(spec, cost)
    return step_s if observation.kind == "step_s" else 1 - step_s / step_seconds(with_deferral(spec, 0), cost)


def residual(observation: Observation, cost: Calibration) -> float:
    """Natural logarithm of simulated over published: of what is left of a step, where it is a share saved."""
    mine, theirs = simulated_value(observation, cost), observation.value
    return log((1 - mine) / (1 - theirs)) if observation.kind == "time_saved" else log(mine / theirs)
