"""The table of a run that asks a suite, and the grids that stand below it: by category, and by formats."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ktbench.report.accuracy.caption import accuracy_caption, drawn_kind
from ktbench.report.accuracy.columns import AccuracyColumn, accuracy_columns
from ktbench.report.accuracy.conditions import accuracy_conditions
from ktbench.report.accuracy.formats import arm_of_formats, formats_of, grid_lines
from ktbench.report.accuracy.methods import accuracy_methods
from ktbench.report.accuracy.text import SURE_MARK, relative_text, score_text
from ktbench.report.columns import Column
from ktbench.report.tables import Table
from ktbench.report.text import DASH
from ktbench.results import Run
from ktbench.results.accuracy import AccuracyRow, absence_of, parts_of_average
from ktbench.results.answers import AVERAGE, SubjectKind
from ktbench.results.row import groups_of, place
from ktbench.results.run import the_part
from ktbench.results.settings import varying


@dataclass(frozen=True, kw_only=True, slots=True)
class Below:
    """A grid below a table: the first column names its lines, the others are numbers."""

    title: str
    headings: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]


def accuracy_table(run: Run, rows: Sequence[AccuracyRow]) -> Table:
    """The table of `rows`, which are those of `run`, a run of one part."""
    part, settings, kind = the_part(run), settings_shown(rows), drawn_kind(run, rows)
    shown, said = _split(accuracy_columns(settings, rows, part.figure), rows)
    return Table(
        part=part.name,
        figure=kind,
        title=run.header.title,
        conditions=(*accuracy_conditions(run, rows, settings), *said),
        methods=accuracy_methods(run, rows),
        columns=tuple(Column(heading=c.heading, write=lambda _: DASH, numeric=c.numeric) for c in shown),
        cells=tuple(tuple(column.write(row) for column in shown) for row in rows),
        control_cells=(),
        notes=tuple(_notes(rows, settings, lambda row: _reasons(row, timed=part.figure == "frontier"))),
        remarks=(),
        figure_caption=accuracy_caption(run, rows),
        commands=tuple((place(row.row, settings), row.command) for row in rows),
    )


def settings_shown(rows: Sequence[AccuracyRow]) -> tuple[str, ...]:
    """Settings that tell rows of one arm apart."""
    return varying([group[0].settings for group in groups_of([row.row for row in rows])])


def _split(every: Sequence[AccuracyColumn], rows: Sequence[AccuracyRow]) -> tuple[list[AccuracyColumn], list[str]]:
    """Columns to show, and sentences in place of those that say the same of all rows; empty ones are left out."""
    shown, said = [], []
    for column in every:
        values = {column.write(row) for row in rows} - {DASH}
        if column.movable and len(values) == 1:
            said.append(f"{column.heading.capitalize()}: {values.pop()}.")
        elif values:
            shown.append(column)
    return shown, said


def _notes(
    rows: Sequence[AccuracyRow], settings: Sequence[str], said: Callable[[AccuracyRow], Sequence[str]]
) -> Iterator[str]:
    """One sentence for each reason, naming all rows that it is said of."""
    holders: dict[str, list[str]] = {}
    for row in rows:
        for sentence in dict.fromkeys(said(row)):
            holders.setdefault(sentence, []).append(place(row.row, settings))
    yield from (f"{'; '.join(names)} — {sentence}" for sentence, names in holders.items())


def _reasons(row: AccuracyRow, *, timed: bool) -> list[str]:
    """Why cells of the row are empty, and where fewer questions were compared than were graded."""
    ending = f"{row.outcome or 'not asked'}: {row.why}" if row.why else ""
    result = row.result()
    absent = absence_of(row) if timed and not ending else ""
    uncompared = fewer = ""
    if result and not row.is_baseline and not ending:
        uncompared = "" if result.change else result.missing["change"]
        compared = result.change.difference.n if result.change else result.graded
        fewer = f"compared on {compared} of {result.graded} graded questions" if compared < result.graded else ""
    return [reason for reason in (ending, absent, uncompared, fewer) if reason]


def undrawn(rows: Sequence[AccuracyRow]) -> Iterator[str]:
    """For each reason the cells that are not drawn for it."""
    settings = settings_shown(rows)
    holders: dict[str, list[str]] = {}
    for row in rows:
        if why := absence_of(row):
            holders.setdefault(why, []).append(place(row.row, settings))
    yield from (f"Not drawn: {'; '.join(names)} ({why})." for why, names in holders.items())


def grids_below(run: Run, rows: Sequence[AccuracyRow]) -> tuple[Below, ...]:
    """Scores by formats where a part asks for that, then scores and changes by category, or by task without those."""
    kind, names = parts_of_average(rows)
    places: list[tuple[str, SubjectKind]] = [*((name, kind) for name in names), (AVERAGE, "average")]
    formats = _formats(rows) if drawn_kind(run, rows) == "precision_accuracy" else ()
    return (*formats, *(_grids(rows, kind, places) if names else ()))


def _formats(rows: Sequence[AccuracyRow]) -> Iterator[Below]:
    _, devices = formats_of(rows)
    yield Below(
        title=f"Average score (% ± SE; in brackets its relative change in %, {SURE_MARK} beyond noise)"
        + arm_of_formats(rows),
        headings=("experts", *(f"device role {name}" for name in devices)),
        lines=grid_lines(rows),
    )


def _grids(
    rows: Sequence[AccuracyRow], kind: SubjectKind, places: Sequence[tuple[str, SubjectKind]]
) -> Iterator[Below]:
    settings = settings_shown(rows)
    headings = ("arm", *(name for name, _ in places))
    yield Below(
        title=f"Scores by {kind} (% ± SE)",
        headings=headings,
        lines=tuple((place(row.row, settings), *(_score(row, *where) for where in places)) for row in rows),
    )
    if others := [row for row in rows if any(one.change for one in row.results)]:
        yield Below(
            title=f"Relative change by {kind} (%; {SURE_MARK} beyond noise)",
            headings=headings,
            lines=tuple((place(row.row, settings), *(_change(row, *where) for where in places)) for row in others),
        )


def _score(row: AccuracyRow, name: str, kind: SubjectKind) -> str:
    result = row.result(name, kind)
    return score_text(None if result is None else result.score)


def _change(row: AccuracyRow, name: str, kind: SubjectKind) -> str:
    result = row.result(name, kind)
    return relative_text(None if result is None else result.change)
