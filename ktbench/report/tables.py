"""The table of a run: cells already written out, ready for any format."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ktbench.report.agreement import UNPROVEN
from ktbench.report.caption import figure_caption
from ktbench.report.columns import AS_SPEEDUP, Column, columns
from ktbench.report.conditions import conditions_of
from ktbench.report.formats import format_notes
from ktbench.report.health import turn_warnings
from ktbench.report.methods import methods_of
from ktbench.report.text import DASH
from ktbench.results import Run
from ktbench.results.row import Row, groups_of, place
from ktbench.results.run import the_part
from ktbench.results.settings import varying
from ktbench.spec.sweep import FigureKind

_UNSTEADY = "in every turn the cores were moved or the two roofs disagreed: the share of the roof is a rough one"

# Why these are missing is the machine's doing: the caption says it for all rows.
_SAID_ONCE = ("energy", "peak")


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """`cells` and `control_cells` have one text for each column. `notes` say why a cell holds a dash or is in doubt
    and what formats peers run, `remarks` what systems said of themselves.

    `part` is the name of the part of the run that it shows, empty where the run has one part; `figure` the kind of the
    figure beside it.
    """

    part: str
    figure: FigureKind
    title: str
    conditions: tuple[str, ...]
    methods: tuple[str, ...]
    columns: tuple[Column, ...]
    cells: tuple[tuple[str, ...], ...]
    control_cells: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]
    remarks: tuple[str, ...]
    figure_caption: str
    commands: tuple[tuple[str, str], ...]

    @property
    def figure_name(self) -> str:
        """Name of the figure's files without their endings; published numbers have one of their own."""
        return named("published" if self.figure == "paper" else "figure", self.part)


def named(what: str, part: str) -> str:
    """Name of a part's files without their endings: `table`, `table-qwen3_layer`."""
    return f"{what}-{part}" if part else what


def table_of(run: Run, rows: Sequence[Row]) -> Table:
    """The table of `rows`, which are those of `run`, a run of one part."""
    settings = varying([group[0].settings for group in groups_of(rows)])
    shown, said = _split(columns(settings, rows), rows)
    arms, controls = ([row for row in rows if row.role == role] for role in ("arm", "control"))
    part = the_part(run)
    return Table(
        part=part.name,
        figure=part.figure,
        title=run.header.title,
        conditions=(*conditions_of(run, rows), *said),
        methods=methods_of(run, rows),
        columns=shown,
        cells=tuple(_cells(shown, row) for row in arms),
        control_cells=tuple(_cells(shown, row) for row in controls),
        notes=(
            *_by_row(rows, settings, _reasons),
            *format_notes(rows),
            *turn_warnings(rows, lambda row: place(row, settings)),
        ),
        remarks=_by_row(rows, settings, lambda row: row.remarks),
        figure_caption=figure_caption(run, rows),
        commands=tuple((place(row, settings), row.command) for row in rows if row.role == "arm"),
    )


def _cells(shown: Sequence[Column], row: Row) -> tuple[str, ...]:
    return tuple(column.write(row) for column in shown)


def _split(every: Sequence[Column], rows: Sequence[Row]) -> tuple[tuple[Column, ...], tuple[str, ...]]:
    """Columns to show, and sentences in place of those that say the same wherever they say anything.

    A column in which no row has a value of its own is left out; the notes say why.
    """
    shown, said = [], []
    for column in every:
        values = {column.write(row) for row in rows} - {DASH, AS_SPEEDUP}
        if not values:
            continue
        if column.movable and len(values) == 1:
            said += [f"{column.heading.capitalize()}: {value}." for value in values]
        else:
            shown.append(column)
    return tuple(shown), tuple(said)


def _by_row(rows: Sequence[Row], settings: Sequence[str], said: Callable[[Row], Sequence[str]]) -> tuple[str, ...]:
    """One sentence for each thing said, naming all rows that it is said of."""
    holders: dict[str, list[str]] = {}
    for row in rows:
        for sentence in said(row):
            holders.setdefault(sentence, []).append(place(row, settings))
    return tuple(f"{'; '.join(names)} — {sentence}" for sentence, names in holders.items())


def _reasons(row: Row) -> list[str]:
    """Why cells of the row are empty or in doubt, each reason once."""
    ending = [f"{row.outcome or 'not measured'}: {row.why}"] if row.why else []
    empty = [why for name, why in row.missing.items() if _worth_saying(row, name)]
    unsteady = [_UNSTEADY] if row.roof and not row.roof.steady else []
    unproven = [UNPROVEN] if row.unproven else []
    return list(dict.fromkeys(ending + empty + unsteady + unproven))


def _worth_saying(row: Row, name: str) -> bool:
    return row.timed and name not in _SAID_ONCE and not (name == "speedup" and row.is_baseline)
