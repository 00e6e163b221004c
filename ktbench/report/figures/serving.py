"""Cells that served requests: rates and latencies over one setting, and output in all against that of one user."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from ktbench.report.figures.curves import (
    REFERENCE,
    Curve,
    CurvePanel,
    Value,
    absences,
    axis_of,
    draw_curves,
    handles,
    looks,
    name_references,
    names_of,
    panels_of,
    place_panels,
)
from ktbench.report.figures.frame import Frame, fitted, is_wide
from ktbench.report.figures.label_placement import XY
from ktbench.report.figures.sheet import LEFT_IN, PAGE_IN, RIGHT_IN, WHISKER, Sheet, mark, reach, scaled
from ktbench.report.table import Table
from ktbench.results.quantities.text import number
from ktbench.results.row import Row
from ktbench.results.usage import Spread


def _of(name: str, scale: float = 1.0) -> Value:
    def spread_of(row: Row) -> Spread | None:
        found = row.interval(name)
        return None if found is None else scaled(found, scale)

    return spread_of


_OUTPUT, _USER = _of("output_per_s"), _of("user_per_s")
_PANELS: dict[str, Value] = {
    "output, tokens/s": _OUTPUT,
    "first token p50, s": _of("ttft_p50_s"),
    "between tokens p50, ms": _of("itl_p50_s", 1e3),
    "a user's output, tokens/s": _USER,
    "first token p99, s": _of("ttft_p99_s"),
    "between tokens p99, ms": _of("itl_p99_s", 1e3),
}


def draw_serving(rows: Sequence[Row], table: Table) -> Sheet:
    """A panel for each rate and latency, a line for each arm, over the setting with the most values."""
    axis = axis_of(rows)
    panels = [(title, panel) for title, value in _PANELS.items() for panel in panels_of(rows, value, axis)]
    several = len(panels) > len(_PANELS)
    titles = [f"{title}, {panel.precision}" if several else title for title, panel in panels]
    caption = [table.figure_caption, *absences(rows, _OUTPUT, axis)]
    every = [panel for _, panel in panels]
    figure, drawn = place_panels(every, (), caption, titles, "", shared=False)
    for panel, axes in zip(every, drawn, strict=True):
        _draw_panel(axes, panel, axis.name, names_of(every))
    return figure


def _draw_panel(axes: Axes, panel: CurvePanel, x_name: str, names: Sequence[str]) -> None:
    lows, highs = [point.y.low for point in panel.points], [point.y.high for point in panel.points]
    tall = bool(lows) and is_wide(lows, highs)
    frame = fitted(axes, (point.x for point in panel.points), lows, highs, x_name, log_y=tall)
    draw_curves(frame, panel, names, bands=True)
    name_references(frame, panel)


_TALL_IN, _BELOW_IN, _ROOM = 3.0, 0.36, 0.08


def draw_interactivity(rows: Sequence[Row], table: Table) -> Sheet:
    """Tokens/s of one user from left to right, of all upwards; the numbers are those of the setting that varies."""
    axis = axis_of(rows)
    arms = [row for row in rows if row.role == "arm" and _USER(row) is not None]
    by_cell = {row.cell: row for row in arms}
    curves = [curve for panel in panels_of(arms or rows, _OUTPUT, axis) for curve in panel.curves]
    names = list(dict.fromkeys(curve.name for curve in curves))
    front_handle = Line2D([], [], label="frontier", color=REFERENCE, linewidth=2.4, alpha=0.5)
    numbers = Line2D([], [], label=f"numbers: {axis.name}", linestyle="")
    caption = [table.figure_caption, *absences(rows, _USER, axis)]
    figure = Sheet(PAGE_IN, _TALL_IN + _BELOW_IN, caption, [*handles(names), front_handle, numbers])
    axes = figure.axes_at(LEFT_IN, 0.0, PAGE_IN - LEFT_IN - RIGHT_IN, _TALL_IN)
    if not arms:
        axes.set_axis_off()
        return figure
    for curve in curves:
        _draw_curve(axes, curve, by_cell, looks(names)[curve.name])
    front = frontier([_place(row) for row in arms])
    axes.plot(*zip(*front, strict=True), color=REFERENCE, linewidth=2.4, alpha=0.5, zorder=1.5)
    axes.margins(_ROOM)
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    for one in (axes.xaxis, axes.yaxis):
        one.set_major_locator(MaxNLocator(8))
    axes.set_ylabel("output of all users, tokens/s")
    frame = Frame(axes=axes, x=axes.get_xlim(), y=axes.get_ylim(), x_name="output of one user, tokens/s")
    frame.take_line(front)
    for row in arms:
        frame.take_marker(_place(row))
    for curve in curves:
        for point in curve.points:
            frame.label_marker(number(point.x, 3).rstrip("0").rstrip("."), _place(by_cell[point.mark.key[0]]))
    return figure


def _draw_curve(axes: Axes, curve: Curve, rows: dict[str, Row], look: dict[str, Any]) -> None:
    places = [(point, _USER(rows[point.mark.key[0]]), point.y) for point in curve.points]
    known = [(point, x, y) for point, x, y in places if x is not None]
    xs, ys = [x for _, x, _ in known], [y for _, _, y in known]
    drawn = axes.errorbar(
        [x.mid for x in xs], [y.mid for y in ys], xerr=reach(xs), yerr=reach(ys), zorder=3, **WHISKER, **look
    )
    mark(drawn.lines[0], *(point.mark for point, _, _ in known))


def _place(row: Row) -> XY:
    x, y = _USER(row), _OUTPUT(row)
    assert x is not None
    assert y is not None
    return x.mid, y.mid


def frontier(points: Sequence[XY]) -> list[XY]:
    """Of points (x, y) those that no other exceeds in one without being below it in the other, by x."""
    found: list[XY] = []
    for x, y in sorted(points, key=lambda point: (-point[0], -point[1])):
        if not found or y > found[-1][1]:
            found.append((x, y))
    return found[::-1]
