"""The table of a run that asks a suite, and the grids that stand below it: by category, and by formats."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any

from ktbench.report.accuracy_text import accuracy_caption, accuracy_conditions, accuracy_methods, drawn_kind
from ktbench.report.conditions import headline
from ktbench.report.table import (
    Column,
    Grid,
    Table,
    build_table,
    columns_for,
    columns_within,
    notes_of,
    setting_columns,
)
from ktbench.report.text import (
    SURE_MARK,
    change_text,
    error_text,
    flips_text,
    not_drawn,
    p_text,
    relative_text,
    score_interval_text,
    score_text,
    spread_text,
)
from ktbench.results import Run
from ktbench.results.accuracy import (
    AccuracyRow,
    Result,
    absence_of,
    arm_of_formats,
    by_formats,
    formats_of,
    frontier_of,
    is_graded,
    parts_of_average,
)
from ktbench.results.answers import AVERAGE, PERPLEXITIES, TOP1, Measure, SubjectKind
from ktbench.results.formats import plane_of_answers
from ktbench.results.quantities.quantity import Quantity
from ktbench.results.quantities.table import BY_NAME
from ktbench.results.quantities.text import DASH, dashed, number, pairs_text
from ktbench.results.quantities.writing import REFERENCE
from ktbench.results.row import groups_of, place
from ktbench.results.run import the_part
from ktbench.results.settings import varying
from ktbench.spec.record import KL
from ktbench.spec.sweep import FigureKind


def grid_lines(rows: Sequence[AccuracyRow]) -> tuple[tuple[str, ...], ...]:
    """A line for each format of the experts, `93.1 ± 0.7 (-0.4)` at each of the device role."""
    (experts, devices), found = formats_of(rows), by_formats(rows)
    return tuple((name, *(_text(found.get((name, device))) for device in devices)) for name in experts)


def _text(row: AccuracyRow | None) -> str:
    result = None if row is None else row.result()
    if result is None or result.score is None:
        return DASH
    beside = [relative_text(result.change)] if result.change else []
    beside += [f"KL {number(result.kl.mid, 2)}"] if result.kl and result.change else []
    return score_text(result.score) + (f" ({', '.join(beside)})" if beside else "")


AccuracyColumn = Column[AccuracyRow]
Write = Callable[[AccuracyRow], str]


def accuracy_table(run: Run, rows: Sequence[AccuracyRow]) -> Table:
    """The table of `rows`, which are those of `run`, a run of one part, with the grids below it."""
    figure, settings = the_part(run).figure, settings_shown(rows)
    reasons = ((place(row.row, settings), why) for row in rows for why in _reasons(row, timed=figure == "frontier"))
    return build_table(
        run,
        accuracy_columns(settings, rows, figure),
        rows,
        figure=drawn_kind(run, rows),
        conditions=accuracy_conditions(run, rows, settings),
        methods=accuracy_methods(run, rows),
        notes=notes_of(reasons),
        headline=headline(run, [row.row for row in rows]),
        figure_caption=accuracy_caption(run, rows),
        commands=tuple((place(row.row, settings), row.command) for row in rows),
        grids=grids_below(run, rows),
    )


def accuracy_columns(
    settings: Sequence[str], rows: Sequence[AccuracyRow], figure: FigureKind
) -> tuple[AccuracyColumn, ...]:
    """All columns of a table of `rows`, with one for each setting that varies, and the speed where it was measured."""
    return (
        Column("arm", lambda row: row.row.shown, numeric=False),
        *setting_columns(settings, lambda row: row.row.settings),
        Column("outcome", lambda row: str(row.outcome or "not evaluated"), movable=True, numeric=False),
        *(_timed(rows) if figure == "frontier" else ()),
        *columns_within(AccuracyRow.result, columns_for(SCORES, ())),
        *_measures(rows),
        Column("evidence (counter)", lambda row: row.evidence or DASH, numeric=False),
        Column("provenance", lambda row: row.provenance or DASH, movable=True, numeric=False),
    )


def _timed(rows: Sequence[AccuracyRow]) -> Iterator[AccuracyColumn]:
    """The speed and, without scores, what formats take and how near the roof they are."""
    found: dict[str, str] = {cell: point.standing for cell, point in frontier_of(rows).items()}
    found |= {point.row.cell: point.standing for point in plane_of_answers(rows).points}

    def timed(*names: str) -> Iterator[AccuracyColumn]:
        quantities, timed_rows = [BY_NAME[name] for name in names], [row.row for row in rows]
        columns = columns_for(quantities, timed_rows, "frontier")
        return (replace(column, key=False) for column in columns_within(attrgetter("row"), columns))

    graded = is_graded(rows)
    yield from timed(*(() if graded else ("experts_bytes", "stored_bits")), "tokens_per_s")
    yield Column("Pareto", lambda row: found.get(row.row.cell, DASH), numeric=False)
    yield from timed(*(() if graded else ("roof_share", "nearer_roof")))


def _verdict(result: Result) -> str:
    return "baseline" if result.is_baseline else dashed(result.change, lambda change: str(change.verdict))


def _kl(result: Result) -> str:
    return dashed(result.kl, lambda kl: REFERENCE if result.is_baseline else error_text(kl))


def _graded(result: Result) -> str:
    return f"{result.graded}/{result.questions}" if result.score else DASH


def _of_change(name: str) -> Callable[[Result], Any]:
    """What is known of the change against the baseline; None where there is none."""
    return lambda result: result.change and attrgetter(name)(result.change)


# What files and tables have of the score of a subject.
SCORES: tuple[Quantity[Result], ...] = (
    Quantity("kind"),
    Quantity("subject"),
    Quantity("metric", derive=lambda _: "score"),
    Quantity(
        "value",
        "score (% ± SE [95 % interval])",
        derive=attrgetter("score"),
        is_estimate=True,
        show=score_interval_text,
    ),
    Quantity("graded", "graded/total (questions)", write=_graded, is_movable=True),
    Quantity("questions"),
    Quantity("difference", "difference (points)", derive=_of_change("difference"), is_estimate=True, show=change_text),
    Quantity("relative", "relative change (%)", derive=_of_change("relative"), is_estimate=True, show=change_text),
    Quantity("compared", derive=_of_change("difference.n")),
    Quantity("flips", "flips (questions)", derive=attrgetter("change"), show=flips_text, csv=False),
    Quantity("lost", derive=_of_change("flips.lost")),
    Quantity("gained", derive=_of_change("flips.gained")),
    Quantity("p", "p (exact McNemar)", derive=_of_change("flips.p"), write=lambda one: p_text(one.change)),
    Quantity("verdict", "verdict", derive=_of_change("verdict"), write=_verdict, is_text=True),
    Quantity(
        "kl_nats",
        "KL (nats/token ± SE)",
        derive=attrgetter("kl"),
        is_estimate=True,
        write=_kl,
        blanks=(DASH, REFERENCE),
    ),
    Quantity("tokens", "answer length (tokens)", digits=3),
    Quantity("longer", "length (× baseline's)", show="{:.2f}".format),
    Quantity("missing", derive=lambda one: pairs_text(one.missing)),
)
# What files have of what is measured in place of a score: of a loss the perplexity.
MEASURES: tuple[Quantity[Measure], ...] = (
    Quantity("kind", derive=lambda _: "task"),
    Quantity("subject", derive=attrgetter("task")),
    Quantity("metric", derive=lambda one: PERPLEXITIES.get(one.metric, one.metric)),
    Quantity("value", is_estimate=True),
    Quantity("graded", derive=attrgetter("value.n")),
    Quantity("relative", derive=attrgetter("change"), is_estimate=True),
)


def _measures(rows: Sequence[AccuracyRow]) -> Iterator[AccuracyColumn]:
    """Columns of what is measured in place of a score, each with its task where there are several."""
    found = dict.fromkeys((one.task, one.metric) for row in rows for one in row.measures)
    several = len({task for task, _ in found}) > 1
    for task, metric in found:
        of = f"{task}: " if several else ""
        for heading, write in _METRICS[metric].items():
            yield Column(of + heading, _of_measure(task, metric, write))


def _of_measure(task: str, metric: str, write: Callable[[Measure], str]) -> Write:
    def written(row: AccuracyRow) -> str:
        found = next((one for one in row.measures if (one.task, one.metric) == (task, metric)), None)
        if found is None:
            return DASH
        return REFERENCE if row.is_baseline and metric in (KL, TOP1) else write(found)

    return written


_METRICS: dict[str, dict[str, Callable[[Measure], str]]] = {
    **{
        metric: {name: lambda one: spread_text(one.value), f"change of {name} (%)": lambda one: change_text(one.change)}
        for metric, name in PERPLEXITIES.items()
    },
    KL: {"KL (nats ± SE)": lambda one: error_text(one.value)},
    TOP1: {"top-1 agreement (% ± SE)": lambda one: error_text(one.value, 100)},
}


def settings_shown(rows: Sequence[AccuracyRow]) -> tuple[str, ...]:
    """Settings that tell rows of one arm apart."""
    return varying([group[0].settings for group in groups_of([row.row for row in rows])])


def _reasons(row: AccuracyRow, *, timed: bool) -> list[str]:
    """Why cells of the row are empty, and where fewer questions were compared than were graded."""
    ending = f"{row.outcome or 'not evaluated'}: {row.why}" if row.why else ""
    roof = row.row.missing.get("roof", "") if timed and row.row.timed and not row.results else ""
    result = row.result()
    absent = absence_of(row) if timed and not ending else ""
    uncompared = fewer = ""
    if result and not row.is_baseline and not ending:
        uncompared = "" if result.change else result.missing["change"]
        compared = result.change.difference.n if result.change else result.graded
        fewer = f"compared on {compared} of {result.graded} graded questions" if compared < result.graded else ""
    return [reason for reason in (ending, absent, roof, uncompared, fewer) if reason]


def undrawn(rows: Sequence[AccuracyRow]) -> Iterator[str]:
    """For each reason the cells that are not drawn for it."""
    settings = settings_shown(rows)
    absent = ((place(row.row, settings), why) for row in rows if (why := absence_of(row)))
    yield from not_drawn(absent)


def grids_below(run: Run, rows: Sequence[AccuracyRow]) -> tuple[Grid, ...]:
    """Scores by formats where a part asks for that, then scores and changes by category, or by task without those."""
    kind, names = parts_of_average(rows)
    places: list[tuple[str, SubjectKind]] = [*((name, kind) for name in names), (AVERAGE, "average")]
    formats = _formats(rows) if drawn_kind(run, rows) == "precision_accuracy" else ()
    return (*formats, *(_grids(rows, kind, places) if names else ()))


def _formats(rows: Sequence[AccuracyRow]) -> Iterator[Grid]:
    _, devices = formats_of(rows)
    yield Grid(
        title="Average score (% ± SE; in brackets its relative change in %, "
        f"{SURE_MARK} beyond noise, and KL in nats a token)" + arm_of_formats(rows),
        headings=("experts", *(f"device role {name}" for name in devices)),
        lines=grid_lines(rows),
    )


def _grids(rows: Sequence[AccuracyRow], kind: SubjectKind, places: Sequence[tuple[str, SubjectKind]]) -> Iterator[Grid]:
    settings = settings_shown(rows)

    def grid(title: str, shown: Sequence[AccuracyRow], write: Callable[[Result], str]) -> Grid:
        lines = ((place(row.row, settings), *(dashed(row.result(*at), write) for at in places)) for row in shown)
        return Grid(title=title, headings=("arm", *(name for name, _ in places)), lines=tuple(lines))

    def divergence(one: Result) -> str:
        return dashed(one.kl, lambda kl: number(kl.mid, 3))

    yield grid(f"Scores by {kind} (% ± SE)", rows, lambda one: score_text(one.score))
    if apart := [row for row in rows if not row.is_baseline and any(one.kl for one in row.results)]:
        yield grid(f"KL from the baseline by {kind} (nats a token of right answers)", apart, divergence)
    if others := [row for row in rows if any(one.change for one in row.results)]:
        title = f"Relative change by {kind} (%; {SURE_MARK} beyond noise)"
        yield grid(title, others, lambda one: relative_text(one.change))
