"""Published numbers as cells that the simulator can simulate, and how far it is off."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from math import log
from typing import Any, Literal

import yaml

from ktbench.sim.calibration import Calibration
from ktbench.sim.graph import busy_share
from ktbench.sim.simulation import step_graph, step_seconds, with_deferral
from ktbench.spec.cells import plan_cells
from ktbench.spec.published import NOT_OURS, STANDS_FOR, Published
from ktbench.spec.run_spec import RunSpec
from ktbench.spec.sweep import SweepSpec, arm_peer

# Seconds of a step; the share of it in which the host works; the share that deferral saves of it.
Kind = Literal["step_s", "host_busy", "time_saved"]
# What each metric is compared with; others are about something that no step shows.
_KINDS: dict[str, Kind] = {
    "tokens/s": "step_s",
    "ms": "step_s",
    "TFLOPS": "step_s",
    "% host busy": "host_busy",
    "% time saved": "time_saved",
}
_CONTEXT = 288  # of a number about decode that has none: as Fig. 12


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishedCell:
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


def of(
    *figures: str,
    phase: str | None = None,
    model: str | None = None,
    base: bool | None = False,
    amx: bool | None = None,
) -> Callable[[PublishedCell], bool]:
    """Whether a number is of one of the figures, and of that phase and model, on AMX, and base's; None: any."""

    def selects(one: PublishedCell) -> bool:
        has_amx = one.spec.machine is not None and one.spec.machine.amx_tflops is not None
        found = ((phase, one.spec.workload.phase), (model, one.model), (base, one.is_base), (amx, has_amx))
        return one.figure in figures and all(wanted in (None, has) for wanted, has in found)

    return selects


def observations_of(
    numbers: Sequence[Published], compose: Callable[[Sequence[str]], RunSpec]
) -> tuple[PublishedCell, ...]:
    """Those of the numbers that are about a step of a cell, without repeats.

    `compose` returns the cell of some overrides of the configuration.
    """
    compose_once = cache(lambda *overrides: compose(overrides))
    return tuple(_observation(number, compose_once) for number in numbers if _is_of_a_cell(number))


def _observation(number: Published, compose: Callable[..., RunSpec]) -> PublishedCell:
    spec = _spec(number, compose)
    return PublishedCell(
        id=number.id, figure=number.figure, spec=spec, kind=_KINDS[number.metric], value=_value(number, spec)
    )


def _is_of_a_cell(number: Published) -> bool:
    if number.repeats or not number.arm or number.arm in NOT_OURS or arm_peer(number.arm):
        return False
    if not (number.machine and number.model and number.precision and number.metric in _KINDS):
        return False
    return number.phase in ("decode", "serving") or number.tokens is not None


def _spec(number: Published, compose: Callable[..., RunSpec]) -> RunSpec:
    phase = "decode" if number.phase == "serving" else str(number.phase)
    spec = compose(f"model={number.model}", f"machine={number.machine}", f"workload={phase}")
    precision = STANDS_FOR.get(number.precision, number.precision) or "bf16"
    shape = spec.model.shape
    changes: dict[str, Any] = {"precision": precision, "device_precision": precision, "workload.batch": number.batch}
    if phase == "layer":
        changes["workload.batch"] = max((number.tokens or 1) * shape.experts // shape.top_k, 1)
    else:
        changes["workload.prompt"] = number.tokens or _CONTEXT
    changes |= {key: yaml.safe_load(value) for key, value in number.conditions.items()}
    if "workload.active_experts" in changes:
        changes["workload.batch"] = number.tokens or 1
    axes = {key: (value,) for key, value in changes.items()}
    (cell,) = plan_cells(spec, SweepSpec(arms=(number.arm,), baseline=number.arm, axes=axes, control=False))
    return cell.spec


def _value(number: Published, spec: RunSpec) -> float:
    """Seconds of a step, or a share."""
    if number.metric == "tokens/s":
        return spec.workload.tokens_per_step / number.value
    if number.metric == "ms":
        return number.value * 1e-3
    if number.metric == "TFLOPS":
        selections = spec.workload.batch * spec.model.shape.top_k
        return selections * 2 * spec.model.shape.expert_params / (number.value * 1e12)
    return number.value / 100


def simulated_value(observation: PublishedCell, cost: Calibration) -> float:
    """The simulator's value for `PublishedCell.value`."""
    spec = observation.spec
    if observation.kind == "host_busy":
        return busy_share(step_graph(spec, cost).tasks, "host")
    step_s = step_seconds(spec, cost)
    return step_s if observation.kind == "step_s" else 1 - step_s / step_seconds(with_deferral(spec, 0), cost)


def residual(observation: PublishedCell, cost: Calibration) -> float:
    """Natural logarithm of simulated over published: of what is left of a step, where it is a share saved."""
    mine, theirs = simulated_value(observation, cost), observation.value
    return log((1 - mine) / (1 - theirs)) if observation.kind == "time_saved" else log(mine / theirs)
