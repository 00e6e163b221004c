"""Values with their intervals as dots beside the names of what they are of: scores, differences, drift."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from ktbench.report.accuracy_table import settings_shown
from ktbench.report.accuracy_text import MOST_DOTS, measured_text
from ktbench.report.figures.curves import REFERENCE, looks
from ktbench.report.figures.sheet import (
    COLUMN_IN,
    PAGE_IN,
    RIGHT_IN,
    WHISKER,
    Mark,
    PanelGrid,
    Sheet,
    mark,
    reach,
    scaled,
)
from ktbench.report.figures.text_metrics import width_in
from ktbench.results.accuracy import AccuracyRow, Result, parts_of_average
from ktbench.results.answers import AVERAGE, LOSSES, PERPLEXITIES, TOP1, SubjectKind
from ktbench.results.row import place
from ktbench.results.scores import Estimate
from ktbench.spec.record import KL

_X_NAMES = {KL: "KL to the baseline, nats", TOP1: "top-1 agreement, %"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Dot:
    """A value of line `line`, drawn in the look of `name`."""

    line: int
    name: str
    value: Estimate
    mark: Mark


@dataclass(frozen=True, kw_only=True, slots=True)
class DotPanel:
    """Dots at a scale of their own; `zero`: with a rule at 0, from which they are read."""

    x_name: str
    dots: tuple[Dot, ...]
    title: str = ""
    scale: float = 1.0
    zero: bool = False


def measured_panels(rows: Sequence[AccuracyRow]) -> list[DotPanel]:
    """A panel for each metric of each task; the baseline has no drift from itself.

    Of losses the change of perplexity, which is paired, or perplexity where there is nothing to compare with.
    """
    paired = any(one.change for row in rows for one in row.measures)
    found: dict[tuple[str, str], list[Dot]] = {}
    for line, row in enumerate(rows):
        for one in row.measures if not row.is_baseline or len(rows) == 1 else ():
            value = one.change if paired and one.metric in LOSSES else one.value
            if value is not None:
                found.setdefault((one.task, one.metric), []).append(
                    Dot(line=line, name="", value=value, mark=Mark(key=(row.row.cell,)))
                )
    panels = [_panel(task, metric, tuple(dots), paired=paired) for (task, metric), dots in found.items()]
    return panels or [DotPanel(x_name="nothing was measured", dots=())]


def _panel(task: str, metric: str, dots: tuple[Dot, ...], *, paired: bool) -> DotPanel:
    if metric not in LOSSES:
        return DotPanel(title=task, x_name=_X_NAMES[metric], dots=dots, scale=100 if metric == TOP1 else 1)
    name = PERPLEXITIES[metric]
    if paired:
        return DotPanel(title=task, x_name=f"change of {name}, %", dots=dots, scale=100, zero=True)
    return DotPanel(title=task, x_name=name, dots=dots)


_ABREAST = 3
_DOT_IN, _SPACE_IN = 0.11, 0.08
_ROOM = 0.06

_Placed = tuple[int, str, Result | None, Mark]  # line, name of the look


def draw_accuracy(rows: Sequence[AccuracyRow], caption: Sequence[str]) -> Sheet:
    """Scores by category or task, and their paired differences; where nothing is graded what is measured instead.

    Where lines by category would be too many, each arm has a line for its average.
    """
    settings = settings_shown(rows)
    names = [place(row.row, settings) for row in rows]
    if not any(row.results for row in rows):
        return draw_dots(names, measured_panels(rows), [""], caption)
    kind, parts = parts_of_average(rows)
    if len(rows) * (len(parts) + 1) > MOST_DOTS:
        average: list[_Placed] = [(line, "", row.result(), Mark(key=(row.row.cell,))) for line, row in enumerate(rows)]
        return draw_dots(names, _scored(average), [""], caption)
    places: list[tuple[str, SubjectKind]] = [*((part, kind) for part in parts), (AVERAGE, "average")]
    found = [
        (line, name, row.result(*where), _mark(row, *where))
        for line, where in enumerate(places)
        for row, name in zip(rows, names, strict=True)
    ]
    return draw_dots([part.replace("_", " ") for part, _ in places], _scored(found), names, caption)


def draw_measured(rows: Sequence[AccuracyRow]) -> Sheet:
    """Perplexity and drift from the baseline, a panel for each metric of each task."""
    settings = settings_shown(rows)
    text = measured_text(rows)
    names = [place(row.row, settings) for row in rows]
    return draw_dots(names, measured_panels(rows), [""], [f"{text[0].upper()}{text[1:]}."])


def _mark(row: AccuracyRow, subject: str, kind: SubjectKind) -> Mark:
    return Mark(key=(row.row.cell,) if kind == "average" else (row.row.cell, kind, subject))


def _scored(found: Sequence[_Placed]) -> list[DotPanel]:
    scores, changes = [], []
    for line, name, result, at in found:
        if result and result.score:
            scores.append(Dot(line=line, name=name, value=result.score, mark=at))
        if result and result.change:
            changes.append(Dot(line=line, name=name, value=result.change.difference, mark=at))
    panels = [DotPanel(x_name="score, %", dots=tuple(scores), scale=100)]
    if changes:
        panels.append(DotPanel(x_name="difference, points", dots=tuple(changes), scale=100, zero=True))
    return panels


def draw_dots(lines: Sequence[str], panels: Sequence[DotPanel], names: Sequence[str], caption: Sequence[str]) -> Sheet:
    """Panels over the same `lines`, three abreast; in each line the looks of `names` one below the other."""
    look_of = looks(names)
    shown = [Line2D([], [], label=name, **look_of[name] | {"linestyle": ""}) for name in names if len(names) > 1]
    layout = PanelGrid(
        count=len(panels),
        columns=min(_ABREAST, len(panels)),
        tall_in=len(lines) * (len(names) * _DOT_IN + _SPACE_IN),
        above_in=0.15 if any(panel.title for panel in panels) else 0.0,
        below_in=0.34,
        width_in=COLUMN_IN if len(panels) == 1 else PAGE_IN,
        left_in=max(width_in(line) for line in lines) + 3 * RIGHT_IN,
        gap_in=0.14,
        right_in=2 * RIGHT_IN,
    )
    figure, every = layout.draw([panel.title for panel in panels], caption, shown)
    for n, (panel, axes) in enumerate(zip(panels, every, strict=True)):
        _draw(axes, panel, names, len(lines))
        axes.set_yticks(range(len(lines)), lines if layout.is_leftmost(n) else [""] * len(lines))
    return figure


def _draw(axes: Axes, panel: DotPanel, names: Sequence[str], lines: int) -> None:
    look_of = looks(names)
    step = _DOT_IN / (len(names) * _DOT_IN + _SPACE_IN)
    for line in range(1, lines):
        axes.axhline(line - 0.5, color="#dddddd", linewidth=0.4, zorder=1)
    if panel.zero:
        axes.axvline(0, color=REFERENCE, linewidth=0.6, zorder=1.5)
    for dot in panel.dots:
        y = dot.line + (names.index(dot.name) - (len(names) - 1) / 2) * step
        value, look = scaled(dot.value, panel.scale), look_of[dot.name] | {"linestyle": ""}
        drawn = axes.errorbar([value.mid], [y], xerr=reach([value]), zorder=3, **WHISKER, **look)
        mark(drawn.lines[0], dot.mark)
    axes.set_ylim(lines - 0.5, -0.5)
    axes.set_xlim(*_limits(panel))
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(panel.x_name)


def _limits(panel: DotPanel) -> tuple[float, float]:
    values = [scaled(dot.value, panel.scale) for dot in panel.dots]
    ends = [end for value in values for end in (value.low, value.high)]
    ends += [0.0] if panel.zero or not ends else []
    room = _ROOM * (max(ends) - min(ends)) or 1.0
    return min(ends) - room, max(ends) + room
