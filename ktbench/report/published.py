"""Which published numbers a cell is about, and how far what it gives is from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache

from ktbench.report.columns import setting_text
from ktbench.results.settings import settings_of, without_precision
from ktbench.spec.arms import arm_changes, arm_peer
from ktbench.spec.peers import BY_NAME
from ktbench.spec.published import NOT_OURS, STANDS_FOR, Metric, Published
from ktbench.spec.run_spec import RunSpec

_CONTROL = "(A/A)"
_DEFERRAL = "engine.deferral"
_MACHINE = "machine."
_ACTIVE = "workload.active_experts"
# A number that says nothing of these was taken without them: no experts at the device, prompts in one piece, and in a
# layer all experts active.
_UNLESS_SAID = {"engine.placement.policy": "host", "workload.chunk": "null", _ACTIVE: "null"}


def published_for(
    spec: RunSpec, label: str, numbers: Sequence[Published], *, anywhere: bool = False
) -> tuple[Published, ...]:
    """Those of `numbers` that are about a cell: same arm, machine, model, precision and work.

    An arm of `deferral=auto` is about a published choice of N. In decode any context is the same work, in layers the
    batch is told by the tokens that an expert gets. A number belongs to the machine that it was measured on: a cell
    measured here has none, nor one on that machine with other constants, but `anywhere` leaves machines out. A slice
    has none, except of a layer.
    """
    facts = _facts(spec)
    return tuple(
        number
        for number in numbers
        if (anywhere or _is_on_its_machine(number, spec))
        and _is_same_work(number, spec)
        and number.precision in _formats(spec)
        and _is_same_arm(number.arm, label)
        and _holds(number, facts, anywhere=anywhere)
    )


def _is_on_its_machine(number: Published, spec: RunSpec) -> bool:
    """Whether the cell's machine is the number's, of whose constants no more are changed than for the number."""
    if spec.machine is None or number.machine != spec.machine.name:
        return False
    return {_MACHINE + name for name in spec.machine.changed} <= set(number.conditions)


def _is_same_work(number: Published, spec: RunSpec) -> bool:
    work = spec.workload
    phase = "decode" if number.phase == "serving" else number.phase
    if (number.model, phase) != (spec.model.name, work.phase):
        return False
    if phase == "layer":
        return number.tokens == spec.tokens_per_expert
    if spec.model.is_slice or number.batch != work.batch:
        return False
    return phase == "decode" or number.tokens == work.prompt


def _formats(spec: RunSpec) -> set[str]:
    """Formats as sources name them that the cell's precision is or stands for; empty where a source names none."""
    ours: set[str] = {spec.precision}
    if spec.system != "ktbench":
        ours |= {BY_NAME[spec.system].types.get(spec.precision, spec.precision).lower()}
    return {"", *ours, *(theirs for theirs, stand_in in STANDS_FOR.items() if stand_in in ours)}


def _is_same_arm(arm: str, label: str) -> bool:
    if not arm or arm in NOT_OURS:
        return False
    theirs, ours = _features(arm), _features(label)
    chosen, asked = theirs[_DEFERRAL], ours[_DEFERRAL]
    if "auto" in (chosen, asked) and chosen and asked:
        ours = ours | {_DEFERRAL: chosen}
    return theirs == ours


@cache
def _features(label: str) -> dict[str, bool | int | str]:
    """What an arm sets, its precision left out."""
    return arm_changes(bare(label))


def bare(label: str) -> str:
    """A label without the words of its precision and of a control: `+v+d` of `+v+d int8 (A/A)`."""
    return without_precision(label.removesuffix(_CONTROL))


def not_simulated_reason(number: Published) -> str:
    """Why no simulated cell has the number beside it, as far as the number itself can tell."""
    if number.phase in ("accuracy", "machine"):
        return "only speeds are"
    if number.arm in NOT_OURS:
        return NOT_OURS[number.arm]
    if arm_peer(number.arm):
        return "the machine model plays our own engine alone"
    if not number.machine:
        return "its source does not name the machine"
    if number.tokens is None and number.phase in ("prefill", "layer"):
        return "its source does not say at how many tokens"
    return "no cell at its settings was planned"


def _facts(spec: RunSpec) -> dict[str, str]:
    """Settings of a cell and constants of its machine, as Hydra writes them."""
    found = settings_of(spec)
    if spec.workload.active_experts == spec.model.shape.experts:
        found |= {_ACTIVE: None}
    return {key: setting_text(value) for key, value in found.items()}


def _holds(number: Published, facts: Mapping[str, str], *, anywhere: bool) -> bool:
    """Whether the cell is at every setting that the number was taken at."""
    wanted = _UNLESS_SAID | number.conditions
    return all(facts.get(key) == value for key, value in wanted.items() if not (anywhere and key.startswith(_MACHINE)))


def error_of(value: float, number: Published) -> float | None:
    """Signed relative error on throughput of a value in the unit of `number`: 0.1 is 10 % faster than published.

    Of a share of the time it is the share's own. None where the number is no speed and no share.
    """
    error = _ERRORS.get(number.metric)
    return None if error is None else error(value, number.value)


def _of_rate(value: float, published: float) -> float:
    return value / published - 1


def _of_time(value: float, published: float) -> float:
    return published / value - 1


def _of_time_saved(value: float, published: float) -> float:
    return (100 - published) / (100 - value) - 1


_ERRORS: Mapping[Metric, Callable[[float, float], float]] = {
    "tokens/s": _of_rate,
    "TFLOPS": _of_rate,
    "ms": _of_time,
    "% host busy": _of_rate,
    "% device busy": _of_rate,
    "% overlap": _of_rate,
    "% time saved": _of_time_saved,
}
