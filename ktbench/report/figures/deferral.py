"""Accuracy over deferred and skipped experts: heat maps, ours and published, and averages with their KL as curves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from ktbench.report.accuracy_table import settings_shown
from ktbench.report.figures.curves import REFERENCE, Point, draw_curve
from ktbench.report.figures.heat import (
    FEATURES,
    HeatCell,
    change_cell,
    count_of,
    draw_feature,
    draw_published_heat,
    heat_layout,
    name_lines,
    room_for,
)
from ktbench.report.figures.paper_panels import line_mark, tasks_named
from ktbench.report.figures.sheet import (
    LEGEND_LINE_IN,
    PAGE_IN,
    RIGHT_IN,
    Mark,
    PanelGrid,
    Sheet,
    legend_lines,
    scaled,
)
from ktbench.results.accuracy import AccuracyRow, parts_of_average
from ktbench.results.answers import AVERAGE, SubjectKind
from ktbench.results.paper import PaperLine
from ktbench.results.quantities.text import DASH
from ktbench.results.row import groups_of
from ktbench.results.settings import model_title, shown_setting
from ktbench.results.usage import Spread

AVERAGE_NAME = "Average"
_ABOVE_IN = 0.1
_SHADES = ("#1d3f5e", "#5d93c4", "#7d7d7d", "#35688f", "#9dbdda", "#555555")
_MARKERS = {"deferral": "o", "skipping": "s"}
_ROOM = 0.08


@dataclass(frozen=True, kw_only=True, slots=True)
class CountCurve:
    """Values of the average in order of the number of experts that `feature` defers or skips."""

    name: str
    feature: str
    points: tuple[Point, ...]
    published: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class _Block:
    """A heat map: the names of its lines from top to bottom, and the rows or published lines that fill it."""

    names: tuple[str, ...]
    where: str
    rows: tuple[AccuracyRow, ...] = ()
    lines: tuple[PaperLine, ...] = ()

    def draw(self, axes: Axes, feature: str) -> None:
        if self.lines:
            draw_published_heat(axes, self.lines, feature, self.where)
        else:
            _draw_ours(axes, self.rows, feature, self.where)


def draw_deferral(rows: Sequence[AccuracyRow], lines: Sequence[PaperLine], caption: Sequence[str]) -> Sheet:
    """A heat map for each group of rows, that of the published `lines` where there are any, and the averages below."""
    blocks, curves = _blocks(rows, lines), curves_of(rows, lines)
    panels = _panels(curves, divergence_curves(rows))
    below = PanelGrid(
        count=len(panels), columns=len(panels), tall_in=1.5, above_in=0.15, below_in=0.36, left_in=0.5, gap_in=0.55
    )
    left = room_for([name for block in blocks for name in block.names])
    maps = [heat_layout(len(block.names), left) for block in blocks]
    heat_in = sum(layout.line_in for layout in maps)
    entries = [Line2D([], [], label=one.name, **_look(one, n)) for n, one in enumerate(curves)]
    legend = legend_lines(entries, PAGE_IN - 2 * RIGHT_IN)
    head_in = _ABOVE_IN + len(legend) * LEGEND_LINE_IN
    figure = Sheet(PAGE_IN, heat_in + (head_in + below.line_in if curves else 0.0), caption)
    for n, (block, layout) in enumerate(zip(blocks, maps, strict=True)):
        axes = layout.axes(figure, ["" for _ in FEATURES], sum(above.line_in for above in maps[:n]))
        for one, feature in zip(axes, FEATURES, strict=True):
            block.draw(one, feature)
        name_lines(axes, block.names)
    if curves:
        figure.draw_legend(legend, figure.head_in + heat_in + _ABOVE_IN)
        for panel, draw in zip(below.axes(figure, list(panels), heat_in + head_in), panels.values(), strict=True):
            draw(panel)
    return figure


def _panels(changes: Sequence[CountCurve], divergences: Sequence[CountCurve]) -> dict[str, Callable[[Axes], None]]:
    """What draws the panels of averages, by title."""
    deferral = [one for one in changes if one.feature == "deferral"] or changes
    found: dict[str, Callable[[Axes], None]] = {
        "change, whole": lambda axes: _draw_changes(axes, changes, changes),
        "change, at the scale of deferral": lambda axes: _draw_changes(axes, changes, deferral),
    }
    return found | ({"KL from the baseline": lambda axes: _draw_divergences(axes, divergences)} if divergences else {})


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
        words = [f"{key.rpartition('.')[2]} {shown_setting(key, group[0].settings.get(key))}" for key in settings]
        name = ", ".join(words) or f"{rows[0].provenance or 'here'} ({model_title(group[0].spec.model.name)})"
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
    theirs = [_published_curve(lines, feature) for feature in FEATURES] if lines else []
    return [curve for curve in (*_our_curves(rows, _change), *theirs) if len(curve.points) > 1]


def divergence_curves(rows: Sequence[AccuracyRow]) -> list[CountCurve]:
    """The KL a token over the number of experts, for each feature of each group; the baseline has none."""
    return [curve for curve in _our_curves(rows, _divergence) if curve.points]


def _our_curves(rows: Sequence[AccuracyRow], value: Callable[[AccuracyRow], Spread | None]) -> list[CountCurve]:
    groups = groups_by_name(rows)
    return [
        CountCurve(
            name=feature + (f", {name}" if len(groups) > 1 else ""),
            feature=feature,
            points=tuple(
                Point(x=count, y=y, mark=Mark(key=(row.row.cell,)))
                for count, row in sorted(rows_by_count(group, feature).items())
                if (y := value(row)) is not None
            ),
        )
        for name, group in groups.items()
        for feature in FEATURES
    ]


def _change(row: AccuracyRow) -> Spread | None:
    """The relative change of the average in percent."""
    result = row.result()
    if row.is_baseline:
        return _exactly(0.0)
    return scaled(result.change.relative, 100) if result and result.change and result.change.relative else None


def _divergence(row: AccuracyRow) -> Spread | None:
    """The KL of the average in nats a token; an end of its interval that a logarithm cannot show is its middle."""
    result = row.result()
    if row.is_baseline or result is None or result.kl is None or result.kl.mid <= 0:
        return None
    found = scaled(result.kl)
    return found if found.low > 0 else replace(found, low=found.mid)


def _published_curve(lines: Sequence[PaperLine], feature: str) -> CountCurve:
    (other,) = FEATURES.keys() - {feature}
    average = [line for line in lines if f" {AVERAGE_NAME}" in line.what and count_of(line, other) == 0]
    found = [(line, line.published if line.metric == "relative %" else 0.0) for line in average]
    points = [
        Point(x=count_of(line, feature), y=_exactly(change), mark=line_mark(line))
        for line, change in found
        if change is not None
    ]
    points.sort(key=lambda point: (point.x, point.y.mid))
    name = f"{feature}, {_published(lines)}"
    return CountCurve(name=name, feature=feature, points=tuple(points), published=True)


def _published(lines: Sequence[PaperLine]) -> str:
    return f"published ({model_title(lines[0].model)})"


def _exactly(change: float) -> Spread:
    return Spread(low=change, mid=change, high=change)


def _blocks(rows: Sequence[AccuracyRow], lines: Sequence[PaperLine]) -> list[_Block]:
    _, names = parts_of_average(rows)
    shown = (*(name.replace("_", " ").capitalize() for name in names), AVERAGE_NAME)
    found = [_Block(names=shown, where=name, rows=group) for name, group in groups_by_name(rows).items()]
    if lines:
        ours = {name.lower(): name for name in shown}
        tasks = tuple(ours.get(task.lower(), task) for task in tasks_named(lines))
        found.append(_Block(names=tasks, where=_published(lines), lines=tuple(lines)))
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


def _draw_changes(axes: Axes, curves: Sequence[CountCurve], near: Sequence[CountCurve]) -> None:
    """Changes at the scale of those `near`."""
    axes.axhline(0, color=REFERENCE, linewidth=0.5, zorder=1)
    _draw_curves(axes, curves)
    values = [point.y for one in near for point in one.points]
    low, high = min(value.low for value in values), max(value.high for value in values)
    room = _ROOM * (high - low) or 1.0
    axes.set_ylim(low - room, high + room)
    axes.yaxis.set_major_locator(MaxNLocator(6))
    axes.set_ylabel("change of the average, %")


def _draw_divergences(axes: Axes, curves: Sequence[CountCurve]) -> None:
    axes.set_yscale("log")
    _draw_curves(axes, curves)
    axes.yaxis.set_major_locator(LogLocator(numticks=6))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_ylabel("nats a token")


def _draw_curves(axes: Axes, curves: Sequence[CountCurve]) -> None:
    """Curves with bands and whiskers."""
    for n, one in enumerate(curves):
        draw_curve(axes, one.points, _look(one, n), bands=True)
    counts = sorted({point.x for one in curves for point in one.points})
    axes.set_xlim(counts[0] - 0.3, counts[-1] + 0.3)
    axes.set_xticks(counts, [f"{count:g}" for count in counts])
    axes.set_xlabel("experts deferred or skipped")


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
