"""Published numbers as cells that the simulator can play."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import yaml

from ktbench.run.request import read_request
from ktbench.sim.observation import Kind, Observation
from ktbench.spec.arms import arm_peer
from ktbench.spec.cells import plan_cells
from ktbench.spec.published import NOT_OURS, STANDS_FOR, Published
from ktbench.spec.run_spec import RunSpec
from ktbench.spec.sweep import SweepSpec

# What each metric is held against; others are about something that no step shows.
_KINDS: dict[str, Kind] = {
    "tokens/s": "step_s",
    "ms": "step_s",
    "TFLOPS": "step_s",
    "% host busy": "host_busy",
    "% time saved": "time_saved",
}
_CONTEXT = 288  # where a number about decode does not say: as Fig. 12


def observations_of(numbers: Sequence[Published]) -> tuple[Observation, ...]:
    """Those of the numbers that are about a step of a cell, repeats left out."""
    return tuple(_observed(numbers))


def _observed(numbers: Sequence[Published]) -> Iterator[Observation]:
    for number in numbers:
        if _is_of_a_cell(number):
            spec = _spec(number)
            yield Observation(
                id=number.id,
                figure=number.figure,
                spec=spec,
                kind=_KINDS[number.metric],
                value=_value(number, spec),
            )


def _is_of_a_cell(number: Published) -> bool:
    if number.repeats or not number.arm or number.arm in NOT_OURS or arm_peer(number.arm):
        return False
    if not (number.machine and number.model and number.precision and number.metric in _KINDS):
        return False
    return number.phase in ("decode", "serving") or number.tokens is not None


def _spec(number: Published) -> RunSpec:
    phase = "decode" if number.phase == "serving" else str(number.phase)
    spec = _base(number.model, number.machine, phase)
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


@cache
def _base(model: str, machine: str, phase: str) -> RunSpec:
    return read_request([f"model={model}", f"machine={machine}", f"workload={phase}"]).parts[0].spec


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
