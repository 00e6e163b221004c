"""A published number as the simulator is held against it."""

from __future__ import annotations

from dataclasses import dataclass
from math import log
from typing import Literal

from ktbench.core.spec import RunSpec
from ktbench.core.timeline import RESOURCES, Timeline
from ktbench.simulate.calibration import Calibration
from ktbench.simulate.deferral import with_deferral
from ktbench.simulate.executor import play
from ktbench.simulate.spans import spans_of
from ktbench.simulate.steps import step_graph

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
        return _host_busy(spec, cost)
    step_s = _step_s(spec, cost)
    return step_s if observation.kind == "step_s" else 1 - step_s / _step_s(with_deferral(spec, 0), cost)


def residual(observation: Observation, cost: Calibration) -> float:
    """Natural logarithm of simulated over published: of what is left of a step, where it is a share saved."""
    mine, theirs = simulated_value(observation, cost), observation.value
    return log((1 - mine) / (1 - theirs)) if observation.kind == "time_saved" else log(mine / theirs)


def _step_s(spec: RunSpec, cost: Calibration) -> float:
    return play(step_graph(spec, cost).tasks).total_s


def _host_busy(spec: RunSpec, cost: Calibration) -> float:
    graph = step_graph(spec, cost)
    played = play(graph.tasks)
    spans = tuple(spans_of(graph, played))
    timeline = Timeline(title="", spans=spans, step_s=played.total_s, provenance="simulated")
    return timeline.busy_s(RESOURCES[0]) / played.total_s
