"""Published, simulated and measured side by side: a line for each published number and each simulated cell."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache

from ktbench.report.columns import setting_text
from ktbench.report.parts import the_part
from ktbench.report.roles import RoleShares
from ktbench.report.row import Row
from ktbench.report.settings import settings_of, without_precision
from ktbench.results.stats.intervals import Interval
from ktbench.results.store import Run
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


def value_of(row: Row, metric: Metric, rows: Sequence[Row]) -> float | None:
    """The value of a row in the unit of `metric`; None where it was not timed or has none.

    `% time saved` is over the row among `rows` that defers nothing and is the same otherwise.
    """
    if not row.timed:
        return None
    if metric == "% time saved":
        return _time_saved(row, rows)
    return _VALUES[metric](row) if metric in _VALUES else None


def _tokens_per_s(row: Row) -> float | None:
    return None if row.tokens_per_s is None else row.tokens_per_s.mid


def _milliseconds(row: Row) -> float | None:
    return None if row.step_s is None else row.step_s.mid * 1e3


def _tera_operations(row: Row) -> float | None:
    return None if row.flops_per_s is None else row.flops_per_s / 1e12


def _percent(share: Callable[[RoleShares], Interval]) -> Callable[[Row], float | None]:
    return lambda row: None if row.roles is None else 100 * share(row.roles).mid


def _time_saved(row: Row, rows: Sequence[Row]) -> float | None:
    undeferred = replace(row.spec, engine=replace(row.spec.engine, deferral=0))
    over = next((other.step_s for other in rows if other.spec == undeferred), None)
    return None if over is None or row.step_s is None else 100 * (1 - row.step_s.mid / over.mid)


_VALUES: Mapping[Metric, Callable[[Row], float | None]] = {
    "tokens/s": _tokens_per_s,
    "ms": _milliseconds,
    "TFLOPS": _tera_operations,
    "TOPS": _tera_operations,
    "% host busy": _percent(lambda roles: roles.host_busy),
    "% device busy": _percent(lambda roles: roles.device_busy),
    "% overlap": _percent(lambda roles: roles.overlap),
}


_SPEEDS: tuple[Metric, ...] = ("tokens/s", "ms", "TFLOPS")
_OF_A_MACHINE = ("threads", "domains", "device", "roles", "device_threads")
_NONE_HERE = "no cell of this work was planned on this machine"


@dataclass(frozen=True, kw_only=True, slots=True)
class PaperLine:
    """One arm at one work, as published and as simulated on the machine named, and as measured on this one.

    The values are in the unit of `metric`. `id` and `source` are those of the published number, empty without one;
    `precision` is the one that it was published in, `tokens` the prompt, the context or the tokens of an expert,
    `conditions` the settings beyond them that it was taken at. `error` is that of the simulated value on throughput:
    0.1 is 10 % faster than published. `repeats` names the number that this one shows once more. `cell` is the simulated
    one and `command` runs it again, both empty without one; `missing` says why a value is None.
    """

    id: str
    arm: str
    machine: str
    model: str
    precision: str
    phase: str
    tokens: float | None
    batch: int
    conditions: str
    what: str
    metric: Metric
    published: float | None = None
    simulated: float | None = None
    measured: float | None = None
    error: float | None = None
    repeats: str | None = None
    source: str = ""
    cell: str = ""
    command: str = ""
    missing: dict[str, str] = field(default_factory=dict)


def paper_lines(run: Run, rows: Sequence[Row]) -> tuple[PaperLine, ...]:
    """Lines of `rows`, which are those of `run`, a run of one part.

    Numbers of the part's figures in the order of their files, each with the simulated cell that it is about; where that
    are several, once with each. Then the simulated cells that no number is about, but have a value.
    """
    shown = the_part(run).published
    numbers = [number for number in run.published if number.figure in shown or number.panel in shown]
    arms = [row for row in rows if row.role == "arm"]
    simulated = [row for row in arms if row.simulated]
    found = {row.cell: published_for(row.spec, row.label, numbers) for row in simulated}
    lines = []
    for number in numbers:
        about = [row for row in simulated if number in found[row.cell]]
        lines += [_line_of(number, row, arms) for row in about] or [_without_cell(number, arms)]
    others = (_without_number(row, arms, numbers) for row in simulated if not found[row.cell])
    return (*lines, *(line for line in others if line.simulated is not None or line.measured is not None))


def reasons(lines: Sequence[PaperLine]) -> Iterator[str]:
    """One sentence for each reason why a value is missing, naming the arms, and the models unless it is all of them.

    Accuracy, and a machine on which no cell was planned at all, are another matter.
    """
    holders: dict[tuple[str, str], list[PaperLine]] = {}
    nowhere = all(line.missing.get("measured") == _NONE_HERE for line in lines)
    for line in lines:
        for name, why in line.missing.items():
            if line.phase == "accuracy" or (nowhere and name == "measured"):
                continue
            holders.setdefault((name, why), []).append(line)
    models = {line.model for line in lines}
    for (name, why), held in holders.items():
        arms, mine = dict.fromkeys(line.arm or line.what for line in held), dict.fromkeys(line.model for line in held)
        of = f" ({', '.join(mine)})" if set(mine) != models else ""
        yield f"{'; '.join(arms)}{of} — not {name}: {why}"


def _line_of(number: Published, row: Row, arms: Sequence[Row]) -> PaperLine:
    line = _with_cell(_published(number), row, arms)
    error = None if line.simulated is None else error_of(line.simulated, number)
    return replace(line, error=error)


def _without_cell(number: Published, arms: Sequence[Row]) -> PaperLine:
    """Of what is not simulated, though it may have been measured here."""
    here = (row for row in arms if not row.simulated and _is_about(number, row))
    line = _measured(_published(number), next(here, None), arms)
    return replace(line, missing={"simulated": not_simulated_reason(number)} | line.missing)


def _is_about(number: Published, row: Row) -> bool:
    return bool(published_for(row.spec, row.label, [number], anywhere=True))


def _without_number(row: Row, arms: Sequence[Row], numbers: Sequence[Published]) -> PaperLine:
    spec, metrics = row.spec, [number.metric for number in numbers if number.metric in _SPEEDS]
    line = PaperLine(
        id="",
        arm=bare(row.label),
        machine="" if spec.machine is None else spec.machine.name,
        model=spec.model.name,
        precision=spec.precision,
        phase=spec.workload.phase,
        tokens=spec.tokens_per_expert if row.is_layer else spec.workload.prompt,
        batch=1 if row.is_layer else spec.workload.batch,
        conditions="",
        what="",
        metric=metrics[0] if metrics else "ms" if row.is_layer else "tokens/s",
        missing={"published": "no number of it is in the figures shown"},
    )
    return _with_cell(line, row, arms)


def _published(number: Published) -> PaperLine:
    return PaperLine(
        id=number.id,
        arm=number.arm,
        machine=number.machine,
        model=number.model,
        precision=number.precision,
        phase=number.phase,
        tokens=number.tokens,
        batch=number.batch,
        conditions=number.settings,
        what=number.what,
        metric=number.metric,
        published=number.value,
        repeats=number.repeats,
        source=number.source,
    )


def _with_cell(line: PaperLine, row: Row, arms: Sequence[Row]) -> PaperLine:
    """The line with what `row` simulates, and what was measured here at the same work."""
    value = value_of(row, line.metric, arms)
    missing = line.missing if value is not None else line.missing | {"simulated": _reason(row, line.metric)}
    line = replace(line, simulated=value, cell=row.cell, command=row.command, missing=missing)
    return _measured(line, next((other for other in arms if _is_alike(other, row)), None), arms)


def _measured(line: PaperLine, here: Row | None, arms: Sequence[Row]) -> PaperLine:
    value = None if here is None else value_of(here, line.metric, arms)
    if value is not None:
        return replace(line, measured=value)
    why = _NONE_HERE if here is None else _reason(here, line.metric)
    return replace(line, missing=line.missing | {"measured": why})


def _reason(row: Row, metric: Metric) -> str:
    return f"its step does not say {metric}" if row.timed else row.missing["step_s"]


def _is_alike(other: Row, row: Row) -> bool:
    """Whether a row is measured here at the work of a simulated one.

    Whatever its routing, its number of steps and what there is of roles and cores: that is the machine's.
    """
    return not other.simulated and _work(other.spec) == _work(row.spec)


def _work(spec: RunSpec) -> tuple[object, ...]:
    work = replace(spec.workload, routing="balanced", trace=None, seed=0, steps=1)
    engine = tuple(getattr(spec.engine, f.name) for f in fields(spec.engine) if f.name not in _OF_A_MACHINE)
    apart = ("workload", "engine", "measure", "machine")
    return (work, *engine, *(getattr(spec, f.name) for f in fields(spec) if f.name not in apart))
