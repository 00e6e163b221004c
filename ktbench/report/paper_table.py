"""The table and the CSV of a part's lines: published, simulated with its error, and measured here."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields

from ktbench.report.columns import Column
from ktbench.report.paper_here import unmeasured_sentences
from ktbench.report.tables import Table
from ktbench.report.text import DASH, number
from ktbench.results import Run
from ktbench.results.paper import PaperLine, error_summary, reasons
from ktbench.results.row import Row
from ktbench.results.run import the_part
from ktbench.spec.published import STANDS_FOR

_TOKENS: Mapping[str, str] = {
    "prefill": "prompt (tokens)",
    "decode": "context (tokens)",
    "layer": "tokens per expert",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class LineColumn:
    """A column of lines. `shared`: where all lines say the same, the conditions say it once instead."""

    heading: str
    write: Callable[[PaperLine], str]
    shared: bool = True
    numeric: bool = False


def paper_table(run: Run, rows: Sequence[Row], lines: Sequence[PaperLine]) -> Table:
    """The table of a part that shows published numbers: `lines` are those of `rows`, the rows of a run of one part."""
    shown, said = _split(_columns(lines), lines)
    return Table(
        part=the_part(run).name,
        figure="paper",
        title=run.header.title,
        conditions=(*said, *_sources(lines), *unmeasured_sentences(run, rows, lines)),
        methods=tuple(_methods(lines)),
        columns=tuple(Column(heading=c.heading, write=lambda _: DASH, numeric=c.numeric) for c in shown),
        cells=tuple(tuple(column.write(line) for column in shown) for line in lines),
        control_cells=(),
        notes=(*reasons(lines), *_stand_ins(lines)),
        remarks=(),
        figure_caption=_caption(run, lines),
        commands=tuple((_place(line, shown), line.command) for line in lines if line.command),
    )


def _caption(run: Run, lines: Sequence[PaperLine]) -> str:
    """What the figure shows; its legend says which look is which."""
    names = {"published": "published", "simulated": "simulated", "measured": "measured here"}
    there = [text for name, text in names.items() if any(getattr(line, name) is not None for line in lines)]
    return f"{run.header.title}: as {', '.join(there[:-1])}{' and ' if there[:-1] else ''}{there[-1]}."


def paper_csv_text(lines: Sequence[PaperLine]) -> str:
    """All fields of all lines, empty where a value is missing; in the column `missing` stands why."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    names = [field.name for field in fields(PaperLine)]
    writer.writerow(names)
    for line in lines:
        why = "; ".join(f"{name}: {reason}" for name, reason in line.missing.items())
        writer.writerow([why if name == "missing" else getattr(line, name) for name in names])
    return out.getvalue()


def _columns(lines: Sequence[PaperLine]) -> Iterator[LineColumn]:
    metrics = {line.metric for line in lines}
    unit = f" ({metrics.pop()})" if len(metrics) == 1 else ""
    yield LineColumn(heading="arm", write=lambda line: line.arm or DASH, shared=False)
    for name in ("machine", "model", "precision", "phase"):
        yield LineColumn(heading=name, write=_text(name))
    yield LineColumn(heading=_tokens_heading(lines), write=lambda line: _plain(line.tokens), numeric=True)
    yield LineColumn(heading="batch", write=lambda line: str(line.batch), numeric=True)
    yield LineColumn(heading="settings", write=lambda line: line.conditions or DASH)
    yield LineColumn(heading="what", write=lambda line: line.what or DASH)
    if not unit:
        yield LineColumn(heading="unit", write=lambda line: line.metric)
    for heading, write in _VALUES.items():
        with_unit = heading if heading == "error (%)" else heading + unit
        yield LineColumn(heading=with_unit, write=write, shared=False, numeric=True)


def _text(name: str) -> Callable[[PaperLine], str]:
    return lambda line: getattr(line, name) or DASH


def _split(every: Iterator[LineColumn], lines: Sequence[PaperLine]) -> tuple[list[LineColumn], list[str]]:
    """Columns to show, and sentences in place of those that say the same of all lines; empty ones are left out."""
    shown, said = [], []
    for column in every:
        values = {column.write(line) for line in lines}
        if values == {DASH}:
            continue
        if column.shared and len(values) == 1:
            said.append(f"{column.heading.capitalize()}: {values.pop()}.")
        else:
            shown.append(column)
    return shown, said


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


def _place(line: PaperLine, shown: Sequence[LineColumn]) -> str:
    """Arm of a line with what tells it from others."""
    settings = [f"{column.heading}={column.write(line)}" for column in shown if column.shared]
    return ", ".join([line.arm, *(setting for setting in settings if not setting.endswith(DASH))])


def _plain(value: float | None) -> str:
    return DASH if value is None else f"{value or 0:.10g}"  # a change of -0.0 is none


def _value(value: float | None) -> str:
    return DASH if value is None else number(value)


def _error(line: PaperLine) -> str:
    return DASH if line.error is None else f"{100 * line.error:+.1f}"


_VALUES: Mapping[str, Callable[[PaperLine], str]] = {
    "published": lambda line: _plain(line.published),
    "simulated": lambda line: _value(line.simulated),
    "error (%)": _error,
    "measured here": lambda line: _value(line.measured),
}
