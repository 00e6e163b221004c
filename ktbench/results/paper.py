"""Published, simulated and measured values side by side: a line for each published number and each simulated cell."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from statistics import mean, median, quantiles
from typing import Any

from ktbench.results.intervals import Interval
from ktbench.results.published import bare, error_of, fitted_numbers, not_simulated_reason, published_for
from ktbench.results.row import Row
from ktbench.results.run import Run, the_part
from ktbench.results.settings import group_by, model_title
from ktbench.spec.published import Metric, Published, figure_of
from ktbench.spec.run_spec import RunSpec

_SPEEDS: tuple[Metric, ...] = ("tokens/s", "ms", "TFLOPS")
_OF_A_MACHINE = ("threads", "domains", "device", "roles", "device_threads")
_NONE_HERE = "no cell of this work was planned on this machine"


@dataclass(frozen=True, kw_only=True, slots=True)
class PaperLine:
    """One arm at one work, as published and as simulated on the machine named, and as measured on this one.

    The values are in the unit of `metric`. `id` and `source` are those of the published number, empty without one;
    `precision` is the one that it was published in, `tokens` the prompt, the context or the tokens of an expert,
    `conditions` the settings beyond them that it was taken at. `error` is that of the simulated value on throughput:
    0.1 is 10 % faster than published. `fitted`: constants of the simulator were fitted on the number. `repeats` names
    the number that this one shows once more. `cell` is the simulated one and `command` runs it again, both empty
    without one; `missing` says why a value is None.
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
    fitted: bool = False
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
    shown = {figure_of(name) for name in the_part(run).published}
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
    nowhere = all(line.missing.get("measured") == _NONE_HERE for line in lines)
    speeds = (line for line in lines if line.phase != "accuracy")
    missing = ((reason, line) for line in speeds for reason in line.missing.items())
    holders = group_by((reason, line) for reason, line in missing if not (nowhere and reason[0] == "measured"))
    models = {line.model for line in lines}
    for (name, why), held in holders.items():
        arms, mine = dict.fromkeys(line.arm or line.what for line in held), dict.fromkeys(line.model for line in held)
        of = f" ({', '.join(map(model_title, mine))})" if set(mine) != models else ""
        yield f"{'; '.join(arms)}{of} — not {name}: {why}"


def value_of(row: Row, metric: Metric, rows: Sequence[Row]) -> float | None:
    """The value of a row in the unit of `metric`; None where it was not timed or has none.

    `% time saved` is over the row among `rows` that defers nothing and is the same otherwise.
    """
    if metric == "% time saved":
        return _time_saved(row, rows)
    if metric in ("TFLOPS", "TOPS"):
        return None if row.flops_per_s is None else row.flops_per_s / 1e12
    of_row, unit = _VALUES.get(metric, (lambda _: None, 1.0))
    found = of_row(row)
    return None if found is None else found.mid * unit


_VALUES: Mapping[Metric, tuple[Callable[[Row], Interval | None], float]] = {
    "tokens/s": (lambda row: row.tokens_per_s, 1.0),
    "ms": (lambda row: row.step_s, 1e3),
    "% host busy": (lambda row: row.interval("host_busy"), 100.0),
    "% device busy": (lambda row: row.interval("device_busy"), 100.0),
    "% overlap": (lambda row: row.interval("overlap"), 100.0),
}


def _time_saved(row: Row, rows: Sequence[Row]) -> float | None:
    undeferred = replace(row.spec, engine=replace(row.spec.engine, deferral=0))
    over = next((other.step_s for other in rows if other.spec == undeferred), None)
    return None if over is None or row.step_s is None else 100 * (1 - row.step_s.mid / over.mid)


def _line_of(number: Published, row: Row, arms: Sequence[Row]) -> PaperLine:
    line = _with_cell(_published(number), row, arms)
    error = None if line.simulated is None else error_of(line.simulated, number)
    return replace(line, error=error)


def _without_cell(number: Published, arms: Sequence[Row]) -> PaperLine:
    """Of what is not simulated, though it may have been measured here."""
    measured = (row for row in arms if not row.simulated)
    here = (row for row in measured if published_for(row.spec, row.label, [number], anywhere=True))
    line = _measured(_published(number), next(here, None), arms)
    return replace(line, missing={"simulated": not_simulated_reason(number)} | line.missing)


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


_OF_NUMBER = ("id", "arm", "machine", "model", "precision", "phase", "tokens", "batch", "what", "metric", "source")


def _published(number: Published) -> PaperLine:
    shared: dict[str, Any] = {name: getattr(number, name) for name in _OF_NUMBER}
    fitted = (number.repeats or number.id) in fitted_numbers()
    return PaperLine(
        **shared, conditions=number.settings, published=number.value, fitted=fitted, repeats=number.repeats
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
    return f"its step has no value in {metric}" if row.timed else row.ending


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


@dataclass(frozen=True, kw_only=True, slots=True)
class ErrorSummary:
    """Relative errors on throughput of `n` lines: median, 90th percentile (linear between order statistics) and largest
    of their sizes, and `bias`, the mean with its sign.
    """

    n: int
    median: float
    p90: float
    largest: float
    bias: float

    @property
    def sentence(self) -> str:
        """The summary in one line, in percent."""
        middle, most, largest = (f"{100 * value:.1f} %" for value in (self.median, self.p90, self.largest))
        cells = "1 cell" if self.n == 1 else f"{self.n} cells"
        return f"{cells}: median {middle}, 90 % within {most}, largest {largest}, bias {100 * self.bias:+.1f} %"


def error_summary(lines: Sequence[PaperLine]) -> ErrorSummary | None:
    """Summary over the lines that have an error, those that repeat another number left out; None where none has."""
    errors = [line.error for line in lines if line.error is not None and line.repeats is None]
    if not errors:
        return None
    sizes = sorted(map(abs, errors))
    p90 = sizes[0] if len(sizes) == 1 else quantiles(sizes, n=10, method="inclusive")[-1]
    return ErrorSummary(n=len(sizes), median=median(sizes), p90=p90, largest=sizes[-1], bias=mean(errors))
