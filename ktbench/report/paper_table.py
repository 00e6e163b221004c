"""The table and the CSV of a part's lines: published, simulated with its error, and measured here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from ktbench.report.data import csv_of, reasons_text
from ktbench.report.table import Column, Table, build_table, split_columns
from ktbench.report.text import DASH, dashed, number
from ktbench.results import Run
from ktbench.results.paper import PaperLine, error_summary, reasons
from ktbench.results.row import Row
from ktbench.results.run import facts_of, the_part
from ktbench.spec.published import STANDS_FOR
from ktbench.spec.run_spec import RunSpec
from ktbench.spec.weights import dense_bytes, expert_bytes

_GIB = 2**30


def unmeasured_sentences(run: Run, rows: Sequence[Row], lines: Sequence[PaperLine]) -> Iterator[str]:
    """Why no line has a measured value: what models need, what this machine has, and how to measure; else nothing."""
    if any(line.measured is not None for line in lines):
        return
    if any(line.phase == "accuracy" for line in lines):
        yield "Accuracy is not simulated."
    if any(not row.simulated for row in rows):
        return
    specs = [row.spec for row in rows if row.spec.machine is not None]
    if not specs:
        return
    total = facts_of(run).get("memory_total_gib")
    there = f"; this machine has {total} GiB" if total else ""
    needs = ", ".join(dict.fromkeys(map(_need, specs)))
    machine = specs[0].machine.name if specs[0].machine else ""
    yield (
        f"Nothing was measured here, because no cell of this machine was requested: {_command(run, machine)} measures "
        f"what fits. Weights take {needs}{there}."
    )


def _command(run: Run, machine: str) -> str:
    """The sweep with this machine beside the one on paper; where it has several parts, in words."""
    both, command = f"machine={machine},here", " ".join(run.header.command)
    alone = not the_part(run).name and "machine=" not in command
    return f"`{command} {both}`" if alone else f"{both} after the ablation of this part alone"


def _need(spec: RunSpec) -> str:
    """`1,248 GiB (deepseek_v3, bf16)`; of a layer alone what its experts take."""
    return f"{_weight_bytes(spec) / _GIB:,.{_places(spec)}f} GiB ({spec.model.name}, {spec.precision})"


def _places(spec: RunSpec) -> int:
    return 0 if _weight_bytes(spec) >= 10 * _GIB else 1


def _weight_bytes(spec: RunSpec) -> int:
    shape = spec.model.shape
    one = shape.experts * expert_bytes(shape, spec.precision)
    if spec.workload.phase == "layer":
        return one
    return shape.moe_layers * one + dense_bytes(shape, spec.device_precision)


_TOKENS: Mapping[str, str] = {
    "prefill": "prompt (tokens)",
    "decode": "context (tokens)",
    "layer": "tokens per expert",
}


def paper_table(run: Run, rows: Sequence[Row], lines: Sequence[PaperLine]) -> Table:
    """The table of a part that shows published numbers: `lines` are those of `rows`, the rows of a run of one part."""
    columns = tuple(_columns(lines))
    shown, shared = split_columns(columns, lines)
    table = build_table(
        run,
        columns,
        lines,
        figure="paper",
        conditions=(),
        methods=tuple(_methods(lines)),
        notes=(*reasons(lines), *_stand_ins(lines)),
        figure_caption=_caption(run, lines),
        commands=tuple((_place(line, shown), line.command) for line in lines if line.command),
    )
    return replace(table, conditions=(*shared, *_sources(lines), *unmeasured_sentences(run, rows, lines)))


def _caption(run: Run, lines: Sequence[PaperLine]) -> str:
    """What the figure shows; its legend explains the looks."""
    names = {"published": "published", "simulated": "simulated", "measured": "measured here"}
    there = [text for name, text in names.items() if any(getattr(line, name) is not None for line in lines)]
    return f"{run.header.title}: as {', '.join(there[:-1])}{' and ' if there[:-1] else ''}{there[-1]}."


def paper_csv_text(lines: Sequence[PaperLine]) -> str:
    """All fields of all lines, empty where a value is missing; in the column `missing` stands why."""
    return csv_of([{**_fields(line), "missing": reasons_text(line.missing)} for line in lines])


def _fields(line: PaperLine) -> dict[str, Any]:
    return {field.name: getattr(line, field.name) for field in fields(PaperLine)}


def _columns(lines: Sequence[PaperLine]) -> Iterator[Column[PaperLine]]:
    metrics = {line.metric for line in lines}
    unit = f" ({metrics.pop()})" if len(metrics) == 1 else ""
    yield Column("arm", lambda line: line.arm or DASH, numeric=False)
    for name in ("machine", "model", "precision", "phase"):
        yield _shared(name, _text(name))
    yield _shared(_tokens_heading(lines), lambda line: _plain(line.tokens), numeric=True)
    yield _shared("batch", lambda line: str(line.batch), numeric=True)
    yield _shared("settings", lambda line: line.conditions or DASH)
    yield _shared("what", lambda line: line.what or DASH)
    if not unit:
        yield _shared("unit", lambda line: line.metric)
    for heading, write in _VALUES.items():
        yield Column(heading if heading == "error (%)" else heading + unit, write)


def _shared(heading: str, write: Callable[[PaperLine], str], *, numeric: bool = False) -> Column[PaperLine]:
    """A column that becomes a condition where all lines read the same."""
    return Column(heading, write, movable=True, with_dashes=True, numeric=numeric)


def _text(name: str) -> Callable[[PaperLine], str]:
    return lambda line: getattr(line, name) or DASH


def _tokens_heading(lines: Sequence[PaperLine]) -> str:
    phases = {line.phase for line in lines}
    return _TOKENS.get(phases.pop(), "tokens") if len(phases) == 1 else "tokens"


def _sources(lines: Sequence[PaperLine]) -> Iterator[str]:
    if sources := dict.fromkeys(line.source for line in lines if line.source):
        yield f"Published in: {'; '.join(sources)}."


def _stand_ins(lines: Sequence[PaperLine]) -> Iterator[str]:
    """Formats that no precision of ours is, with the one that was taken in their place."""
    for theirs in dict.fromkeys(line.precision for line in lines if line.simulated is not None):
        if theirs in STANDS_FOR:
            yield f"{theirs} — simulated as {STANDS_FOR[theirs]}, of about as many bits"


def _methods(lines: Sequence[PaperLine]) -> Iterator[str]:
    """What the errors are and come to."""
    summary = error_summary(lines)
    if summary is None:
        return
    yield "Errors are of the simulated values on throughput: above 0 faster than published; of shares, of the share."
    repeats = sum(line.error is not None and line.repeats is not None for line in lines)
    left_out = f", {repeats} that repeat another figure left out" if repeats else ""
    yield f"Simulated against published over {summary.sentence}{left_out}."


def _place(line: PaperLine, shown: Sequence[Column[PaperLine]]) -> str:
    """Arm of a line with what tells it from others."""
    settings = [f"{column.heading}={column.write(line)}" for column in shown if column.movable]
    return ", ".join([line.arm, *(setting for setting in settings if not setting.endswith(DASH))])


def _plain(value: float | None) -> str:
    return dashed(value, lambda value: f"{value or 0:.10g}")  # a change of -0.0 is none


_VALUES: Mapping[str, Callable[[PaperLine], str]] = {
    "published": lambda line: _plain(line.published),
    "simulated": lambda line: dashed(line.simulated, number),
    "error (%)": lambda line: dashed(line.error, lambda error: f"{100 * error:+.1f}"),
    "measured here": lambda line: dashed(line.measured, number),
}
