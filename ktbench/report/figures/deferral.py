"""Accuracy over deferred and skipped experts: heat maps by category, ours and published, and the average as curves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from ktbench.report.accuracy_table import settings_shown
from ktbench.report.figures.curves import REFERENCE
from ktbench.report.figures.heat import (
    CELL_IN,
    FEATURES,
    FOOT_IN,
    GAP_IN,
    HEAD_IN,
    HeatCell,
    change_cell,
    count_of,
    draw_feature,
    draw_published_heat,
)
from ktbench.report.figures.paper_panels import line_mark, tasks_named
from ktbench.report.figures.sheet import (
    LEGEND_LINE_IN,
    PAGE_IN,
    RIGHT_IN,
    TOP_IN,
    Mark,
    Sheet,
    axes_at,
    draw_legend,
    legend_lines,
    mark,
    sheet,
    style_ticks,
)
from ktbench.report.figures.text_metrics import LABEL_PT, TICK_PT, width_in
from ktbench.report.text import DASH
from ktbench.results.accuracy import AccuracyRow, parts_of_average
from ktbench.results.answers import AVERAGE, SubjectKind
from ktbench.results.paper import PaperLine
from ktbench.results.row import groups_of

AVERAGE_NAME = "Average"
_CURVES_IN, _ABOVE_IN, _TITLE_IN, _BELOW_IN, _MARGIN_IN = 1.5, 0.1, 0.15, 0.36, 0.5
_SHADES = ("#1d3f5e", "#5d93c4", "#7d7d7d", "#35688f", "#9dbdda", "#555555")
_MARKERS = {"deferral": "o", "skipping": "s"}
_ROOM = 0.08


@dataclass(frozen=True, kw_only=True, slots=True)
class CountPoint:
    """The change of the average, in percent, at a number of experts; without the ends of an interval it has none."""

    count: int
    change: float
    mark: Mark
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class CountCurve:
    """Points in order of the number of experts that `feature` defers or skips."""

    name: str
    feature: str
    points: tuple[CountPoint, ...]
    published: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class _Block:
    """A heat map: the names of its lines from top to bottom, and the rows or published lines that fill it."""

    names: tuple[str, ...]
    where: str
    rows: tuple[AccuracyRow, ...] = ()
    lines: tuple[PaperLine, ...] = ()

    @property
    def tall_in(self) -> float:
        return HEAD_IN + len(self.names) * CELL_IN + FOOT_IN

    def draw(self, axes: Axes, feature: str) -> None:
        if self.lines:
            draw_published_heat(axes, self.lines, feature, self.where)
        else:
            _draw_ours(axes, self.rows, feature, self.where)


def draw_deferral(rows: Sequence[AccuracyRow], lines: Sequence[PaperLine], caption: Sequence[str]) -> Sheet:
    """A heat map for each group of rows, that of the published `lines` where there are any, and the averages below."""
    blocks, curves = _blocks(rows, lines), curves_of(rows, lines)
    left = max(width_in(name, TICK_PT) for block in blocks for name in block.names) + 2 * RIGHT_IN
    each = (PAGE_IN - left - RIGHT_IN - GAP_IN) / 2
    heat_in = sum(block.tall_in for block in blocks)
    entries = [Line2D([], [], label=one.name, **_look(one, n)) for n, one in enumerate(curves)]
    legend = legend_lines(entries, PAGE_IN - 2 * RIGHT_IN)
    above_in = _ABOVE_IN + len(legend) * LEGEND_LINE_IN + _TITLE_IN
    curves_in = above_in + _CURVES_IN + _BELOW_IN if curves else 0.0
    figure = sheet(PAGE_IN, TOP_IN + heat_in + curves_in, caption)
    top = TOP_IN
    for block in blocks:
        for n, feature in enumerate(FEATURES):
            tall = len(block.names) * CELL_IN
            axes = axes_at(figure, left + n * (each + GAP_IN), top + HEAD_IN, each, tall)
            block.draw(axes, feature)
            axes.set_yticks(range(len(block.names)), block.names if n == 0 else [""] * len(block.names))
        top += block.tall_in
    if curves:
        _draw_averages(figure, curves, legend, top + _ABOVE_IN)
    return figure


def all_counted(rows: Sequence[AccuracyRow]) -> bool:
    """Whether every cell is drawn: each defers or skips a number of experts that others of its group differ in."""
    found = {
        row.row.cell
        for group in groups_by_name(rows).values()
        for feature in FEATURES
        if len(by_count := rows_by_count(group, feature)) > 1
        for row in by_count.values()
    }
    return all(row.row.cell in found for row in rows)


def groups_by_name(rows: Sequence[AccuracyRow]) -> dict[str, tuple[AccuracyRow, ...]]:
    """Rows that differ in their arms alone, by what the group is called: the model where there is one group."""
    settings, by_cell = settings_shown(rows), {row.row.cell: row for row in rows}
    found: dict[str, tuple[AccuracyRow, ...]] = {}
    for group in groups_of([row.row for row in rows]):
        words = [f"{key.rpartition('.')[2]} {group[0].settings.get(key)}" for key in settings]
        name = ", ".join(words) or f"{rows[0].provenance or 'here'} ({group[0].spec.model.name})"
        found[name] = tuple(by_cell[row.cell] for row in group)
    return found


def rows_by_count(rows: Sequence[AccuracyRow], feature: str) -> dict[int, AccuracyRow]:
    """Rows by how many experts they defer or skip; those that do the other, or leave the number open, left out."""
    (other,) = FEATURES.keys() - {feature}
    found: dict[int, AccuracyRow] = {}
    for row in rows:
        count = row.row.features[feature]
        if not row.row.features[other] and isinstance(count, int):
            found.setdefault(count, row)
    return found


def curves_of(rows: Sequence[AccuracyRow], lines: Sequence[PaperLine]) -> list[CountCurve]:
    """The change of the average over the number of experts, for each feature: of each group, and as published."""
    groups = groups_by_name(rows)
    ours = [
        _our_curve(group, feature, f", {name}" if len(groups) > 1 else "")
        for name, group in groups.items()
        for feature in FEATURES
    ]
    theirs = [_published_curve(lines, feature) for feature in FEATURES] if lines else []
    return [curve for curve in (*ours, *theirs) if len(curve.points) > 1]


def _our_curve(rows: Sequence[AccuracyRow], feature: str, suffix: str) -> CountCurve:
    points = []
    for count, row in sorted(rows_by_count(rows, feature).items()):
        result, at = row.result(), Mark(key=(row.row.cell,))
        if row.is_baseline:
            points.append(CountPoint(count=count, change=0.0, mark=at))
        elif result and result.change and result.change.relative:
            change = result.change.relative
            low, high = (None if end is None else 100 * end for end in (change.low, change.high))
            points.append(CountPoint(count=count, change=100 * change.mid, mark=at, low=low, high=high))
    return CountCurve(name=f"{feature}{suffix}", feature=feature, points=tuple(points))


def _published_curve(lines: Sequence[PaperLine], feature: str) -> CountCurve:
    (other,) = FEATURES.keys() - {feature}
    average = [line for line in lines if f" {AVERAGE_NAME}" in line.what and count_of(line, other) == 0]
    found = [(line, line.published if line.metric == "relative %" else 0.0) for line in average]
    points = [
        CountPoint(count=count_of(line, feature), change=change, mark=line_mark(line))
        for line, change in found
        if change is not None
    ]
    points.sort(key=lambda point: (point.count, point.change))
    name = f"{feature}, published ({lines[0].model})"
    return CountCurve(name=name, feature=feature, points=tuple(points), published=True)


def _blocks(rows: Sequence[AccuracyRow], lines: Sequence[PaperLine]) -> list[_Block]:
    _, names = parts_of_average(rows)
    shown = (*(name.replace("_", " ").capitalize() for name in names), AVERAGE_NAME)
    found = [_Block(names=shown, where=name, rows=group) for name, group in groups_by_name(rows).items()]
    if lines:
        where = f"published ({lines[0].model})"
        found.append(_Block(names=tuple(tasks_named(lines)), where=where, lines=tuple(lines)))
    return found


def _draw_ours(axes: Axes, rows: Sequence[AccuracyRow], feature: str, where: str) -> None:
    by_count = rows_by_count(rows, feature)
    kind, names = parts_of_average(rows)
    places: list[tuple[str, SubjectKind]] = [*((name, kind) for name in names), (AVERAGE, "average")]
    counts = sorted(by_count)
    cells = {
        (x, y): _cell(by_count[count], name, what, count)
        for x, count in enumerate(counts)
        for y, (name, what) in enumerate(places)
    }
    draw_feature(axes, cells, counts, len(places), feature, where)


def _cell(row: AccuracyRow, subject: str, kind: SubjectKind, count: int) -> HeatCell:
    """The score where no expert is deferred or skipped, else the change."""
    result = row.result(subject, kind)
    at = Mark(key=(row.row.cell,) if kind == "average" or result is None else (row.row.cell, kind, subject))
    if count:
        return change_cell(result, at)
    return HeatCell(text=DASH if result is None or result.score is None else f"{100 * result.score.mid:.1f}", mark=at)


def _draw_averages(figure: Sheet, curves: Sequence[CountCurve], legend: Sequence[Sequence[Artist]], top: float) -> None:
    """All of the changes on the left, those of deferral at their own scale on the right."""
    draw_legend(figure, legend, top)
    each = PAGE_IN / 2 - _MARGIN_IN - RIGHT_IN
    for n, near in enumerate((False, True)):
        left = _MARGIN_IN + n * PAGE_IN / 2
        axes = axes_at(figure, left, top + len(legend) * LEGEND_LINE_IN + _TITLE_IN, each, _CURVES_IN)
        _draw_curves(axes, curves, near=near)


def _draw_curves(axes: Axes, curves: Sequence[CountCurve], *, near: bool) -> None:
    """Curves with bands and whiskers; `near`: at the scale of those of deferral alone."""
    axes.axhline(0, color=REFERENCE, linewidth=0.5, zorder=1)
    for n, one in enumerate(curves):
        _draw_curve(axes, one, _look(one, n))
    counts = sorted({point.count for one in curves for point in one.points})
    axes.set_xlim(counts[0] - 0.3, counts[-1] + 0.3)
    axes.set_xticks(counts)
    axes.set_ylim(_limits([one for one in curves if one.feature == "deferral" or not near] or curves))
    axes.yaxis.set_major_locator(MaxNLocator(6))
    style_ticks(axes)
    axes.set_xlabel("experts deferred or skipped of a token", fontsize=LABEL_PT, labelpad=1.5)
    axes.set_ylabel("change of the average, %", fontsize=LABEL_PT, labelpad=2)
    axes.set_title("at the scale of deferral" if near else "whole", fontsize=LABEL_PT, pad=2)


def _draw_curve(axes: Axes, one: CountCurve, look: dict[str, Any]) -> None:
    (line,) = axes.plot([point.count for point in one.points], [point.change for point in one.points], zorder=3, **look)
    mark(line, *(point.mark for point in one.points))
    known = [
        (point.count, point.change, point.low, point.high)
        for point in one.points
        if point.low is not None and point.high is not None
    ]
    if not known:
        return
    counts, values, lows, highs = zip(*known, strict=True)
    axes.fill_between(counts, lows, highs, color=look["color"], alpha=0.14, linewidth=0, zorder=1.5)
    reach = [[value - low for _, value, low, _ in known], [high - value for _, value, _, high in known]]
    axes.errorbar(
        counts, values, reach, linestyle="", color=look["color"], elinewidth=0.7, capsize=1.6, capthick=0.7, zorder=2.5
    )


def _limits(curves: Sequence[CountCurve]) -> tuple[float, float]:
    found = [(point.change, point.low, point.high) for one in curves for point in one.points]
    ends = [end for values in found for end in values if end is not None]
    low, high = min(ends), max(ends)
    room = _ROOM * (high - low) or 1.0
    return low - room, high + room


def _look(one: CountCurve, number: int) -> dict[str, Any]:
    shade = REFERENCE if one.published else _SHADES[number % len(_SHADES)]
    return {
        "color": shade,
        "linewidth": 0.8 if one.published else 1.0,
        "linestyle": (0, (3, 2)) if one.published else "-",
        "marker": _MARKERS[one.feature],
        "markersize": 3.0,
        "markerfacecolor": "white" if one.published else shade,
        "markeredgewidth": 0.7,
    }
