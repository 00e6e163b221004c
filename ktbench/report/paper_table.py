"""The table and the CSV of a part's lines: published, simulated with its error, and measured here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict

from ktbench.report.conditions import where_words
from ktbench.report.data import csv_of
from ktbench.report.table import Column, Table, build_table, split_columns
from ktbench.report.template import sentences
from ktbench.report.text import signed
from ktbench.results import Run
from ktbench.results.paper import PaperLine, error_summary, reasons
from ktbench.results.quantities.text import DASH, dashed, number, pairs_text
from ktbench.results.row import Row
from ktbench.results.run import facts_of, the_part
from ktbench.results.settings import described_title, model_title
from ktbench.spec.published import STANDS_FOR
from ktbench.spec.run_spec import RunSpec
from ktbench.spec.weights import dense_bytes, expert_bytes


def _conditions(run: Run, rows: Sequence[Row], lines: Sequence[PaperLine]) -> tuple[str, ...]:
    """Sources; why no line has a measured value: what models need, what this machine has, and how to measure."""
    simulated = [row.spec for row in rows if row.spec.machine] if all(row.simulated for row in rows) else []
    return sentences(
        "paper.txt.j2",
        "conditions",
        sources=dict.fromkeys(line.source for line in lines if line.source),
        is_measured=any(line.measured is not None for line in lines),
        is_accuracy=any(line.phase == "accuracy" for line in lines),
        machine=next((spec.machine.name for spec in simulated if spec.machine), ""),
        beside_here=_keeps_machines(simulated),
        command=" ".join(run.header.command),
        part=the_part(run).name,
        needs=dict.fromkeys(map(_need, simulated)),
        total=facts_of(run).get("memory_total_gib"),
    )


def _keeps_machines(simulated: Sequence[RunSpec]) -> bool:
    """Whether nothing of the machines is set by the request, which is refused for the machine that this runs on."""
    machines = [spec.machine for spec in simulated if spec.machine]
    return not any(one.changed for one in machines) and len({one.calibration for one in machines}) < 2


def _need(spec: RunSpec) -> str:
    """`1,248 GiB (DeepSeek-V3, bf16)`; of a layer alone what its experts take."""
    shape = spec.model.shape
    one = shape.experts * expert_bytes(shape, spec.precision)
    whole = shape.moe_layers * one + dense_bytes(shape, spec.device_precision)
    gib = (one if spec.workload.phase == "layer" else whole) / 2**30
    return f"{gib:,.{0 if gib >= 10 else 1}f} GiB ({model_title(spec.model.name)}, {spec.precision})"


_TOKENS: Mapping[str, str] = {
    "prefill": "prompt (tokens)",
    "decode": "context (tokens)",
    "layer": "tokens per expert",
    "train": "sequence (tokens)",
}


def paper_table(run: Run, rows: Sequence[Row], lines: Sequence[PaperLine]) -> Table:
    """The table of a part that shows published numbers: `lines` are those of `rows`, the rows of a run of one part."""
    where, (shown, shared) = where_words(run, rows), split_columns(_columns(lines), lines)
    return build_table(
        run,
        shown,
        lines,
        figure="paper",
        headline=where[:1].upper() + where[1:],
        conditions=(*shared, *_conditions(run, rows, lines)),
        methods=sentences(
            "paper.txt.j2",
            "methods",
            summary=error_summary(lines),
            held_out=error_summary([line for line in lines if not line.fitted]),
            repeats=sum(line.error is not None and line.repeats is not None for line in lines),
        ),
        notes=(*reasons(lines), *_stand_ins(lines)),
        figure_caption=_caption(run, lines),
        commands=tuple((_place(line, shown), line.command) for line in lines if line.command),
    )


def _caption(run: Run, lines: Sequence[PaperLine]) -> str:
    """What the figure shows; its legend explains the looks."""
    names = {"published": "published", "simulated": "simulated", "measured": "measured here"}
    there = [text for name, text in names.items() if any(getattr(line, name) is not None for line in lines)]
    return f"{run.header.title}: as {', '.join(there[:-1])}{' and ' if there[:-1] else ''}{there[-1]}."


def paper_csv_text(lines: Sequence[PaperLine]) -> str:
    """All fields of all lines, empty where a value is missing; in the column `missing` stands why."""
    return csv_of([{**asdict(line), "missing": pairs_text(line.missing)} for line in lines])


def _columns(lines: Sequence[PaperLine]) -> Iterator[Column[PaperLine]]:
    metrics = {line.metric for line in lines}
    unit = f" ({metrics.pop()})" if len(metrics) == 1 else ""
    yield Column("arm", lambda line: line.arm or DASH, numeric=False)
    yield _shared("machine", lambda line: described_title(line.machine) if line.machine else DASH)
    yield _shared("model", lambda line: model_title(line.model) if line.model else DASH)
    for name in ("precision", "phase"):
        yield _shared(name, _text(name))
    yield _shared(_tokens_heading(lines), lambda line: _plain(line.tokens), numeric=True)
    yield _shared("batch", lambda line: str(line.batch), numeric=True)
    yield _shared("settings", lambda line: line.conditions or DASH)
    yield _shared("what", lambda line: line.what or DASH)
    if not unit:
        yield _shared("unit", lambda line: line.metric)
    for heading, write in _VALUES.items():
        yield Column(heading if heading == "error (%)" else heading + unit, write)
    yield Column("used to fit", lambda line: "yes" if line.fitted and line.error is not None else DASH, numeric=False)


def _shared(heading: str, write: Callable[[PaperLine], str], *, numeric: bool = False) -> Column[PaperLine]:
    """A column that becomes a condition where all lines read the same."""
    return Column(heading, write, movable=True, with_dashes=True, numeric=numeric)


def _text(name: str) -> Callable[[PaperLine], str]:
    return lambda line: getattr(line, name) or DASH


def _tokens_heading(lines: Sequence[PaperLine]) -> str:
    phases = {line.phase for line in lines}
    return _TOKENS.get(phases.pop(), "tokens") if len(phases) == 1 else "tokens"


def _stand_ins(lines: Sequence[PaperLine]) -> Iterator[str]:
    """Formats that no precision of ours is, with the one that was taken in their place."""
    for theirs in dict.fromkeys(line.precision for line in lines if line.simulated is not None):
        if theirs in STANDS_FOR:
            yield f"{theirs} — simulated as {STANDS_FOR[theirs]}, of about as many bits"


def _place(line: PaperLine, shown: Sequence[Column[PaperLine]]) -> str:
    """Arm of a line with what tells it from others."""
    settings = [f"{column.heading}={column.write(line)}" for column in shown if column.movable]
    return ", ".join([line.arm, *(setting for setting in settings if not setting.endswith(DASH))])


def _plain(value: float | None) -> str:
    return dashed(value, lambda value: f"{value or 0:.10g}")  # a change of -0.0 is none


_VALUES: Mapping[str, Callable[[PaperLine], str]] = {
    "published": lambda line: _plain(line.published),
    "simulated": lambda line: dashed(line.simulated, number),
    "error (%)": lambda line: dashed(line.error, signed),
    "measured here": lambda line: dashed(line.measured, number),
}
