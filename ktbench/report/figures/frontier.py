"""Decode speed against score: a marker for each cell, those that none beats in both joined."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from ktbench.report.accuracy_table import undrawn
from ktbench.report.figures.curves import REFERENCE, looks
from ktbench.report.figures.label_placement import XY, Box, Spot, along, around, clearest
from ktbench.report.figures.sheet import (
    LEFT_IN,
    LEGEND_LINE_IN,
    PAGE_IN,
    RIGHT_IN,
    TOP_IN,
    Sheet,
    axes_at,
    draw_legend,
    legend_lines,
    mark_cells,
    sheet,
    style_ticks,
)
from ktbench.report.figures.text_metrics import INK, LABEL_PT, TICK_PT, line_in, width_in
from ktbench.results.accuracy import AccuracyRow, FrontierPoint, frontier_of
from ktbench.results.settings import without_precision


def formats_text(row: AccuracyRow) -> str:
    """The format of the experts, and that of the device role where it is another."""
    spec = row.row.spec
    return spec.precision if spec.precision == spec.device_precision else f"{spec.precision}, {spec.device_precision}"


def words_of(points: Sequence[FrontierPoint]) -> tuple[list[str], str]:
    """What stands at each marker, and what it is the number of; nothing where it is no number.

    Words that all arms share are left out. Where one feature alone is left its number is enough, 0 without it.
    """
    labels = [without_precision(point.row.row.shown) for point in points]
    common = set.intersection(*(set(label.split()) for label in labels))
    short = [" ".join(word for word in label.split() if word not in common) for label in labels]
    keys = {text.partition("=")[0] for text in short if text}
    if len(keys) == 1 and all(text.count("=") == 1 for text in short if text):
        return [text.partition("=")[2] or "0" for text in short], keys.pop()
    return [text or label for text, label in zip(short, labels, strict=True)], ""


_TALL_IN, _BELOW_IN = 3.0, 0.36
_MARKER_IN, _CLEAR_IN, _LINE_IN, _APART_IN = 0.035, 0.05, 0.012, 0.02
_LETTER = 0.75  # height of a letter as a share of a line
_ROOM = 0.08


def draw_frontier(rows: Sequence[AccuracyRow], caption: Sequence[str]) -> Sheet:
    """Tokens/s from left to right, the average score upwards. The look says the formats, the words the features."""
    points = list(frontier_of(rows).values())
    names = list(dict.fromkeys(formats_text(point.row) for point in points))
    legend = legend_lines(_entries(points, names), PAGE_IN - 2 * RIGHT_IN)
    head = TOP_IN + len(legend) * LEGEND_LINE_IN
    figure = sheet(PAGE_IN, head + _TALL_IN + _BELOW_IN, [*caption, *undrawn(rows)])
    draw_legend(figure, legend, TOP_IN)
    wide = PAGE_IN - LEFT_IN - RIGHT_IN
    axes = axes_at(figure, LEFT_IN, head, wide, _TALL_IN)
    if points:
        _draw(axes, points, names, wide)
    else:
        axes.set_axis_off()
    return figure


def _entries(points: Sequence[FrontierPoint], names: Sequence[str]) -> list[Line2D]:
    entries = [Line2D([], [], label=name, **_look(name, names, is_pareto=False)) for name in names]
    front: dict[str, Any] = {"color": REFERENCE, "linewidth": 0.8, "marker": "o", "markersize": 3.4}
    key = words_of(points)[1] if points else ""
    numbers = [Line2D([], [], label=f"numbers: {key}", linestyle="")] if key else []
    return [*entries, Line2D([], [], label="Pareto, filled", **front), *numbers]


def _look(name: str, names: Sequence[str], *, is_pareto: bool) -> dict[str, Any]:
    look = looks(names)[name]
    return look | {"linestyle": "", "markersize": 4.0, "markerfacecolor": look["color"] if is_pareto else "white"}


def _draw(axes: Axes, points: Sequence[FrontierPoint], names: Sequence[str], wide: float) -> None:
    for point in points:
        look = _look(formats_text(point.row), names, is_pareto=point.is_pareto)
        (x, x_reach), (y, y_reach) = _speed(point), _score(point)
        drawn = axes.errorbar(
            [x], [y], xerr=x_reach, yerr=y_reach, elinewidth=0.5, capsize=1.2, capthick=0.5, zorder=3, **look
        )
        mark_cells(drawn.lines[0], [point.row.row.cell])
    axes.plot(*zip(*_front(points), strict=True), color=REFERENCE, linewidth=0.8, zorder=2)
    axes.margins(_ROOM)
    axes.autoscale_view()
    axes.xaxis.set_major_locator(MaxNLocator(8))
    axes.yaxis.set_major_locator(MaxNLocator(8))
    style_ticks(axes)
    axes.set_xlabel("decode speed, tokens/s", fontsize=LABEL_PT, labelpad=1.5)
    axes.set_ylabel("average score, %", fontsize=LABEL_PT, labelpad=2)
    _label(axes, points, wide)


def _front(points: Sequence[FrontierPoint]) -> list[XY]:
    return sorted(_middle(point) for point in points if point.is_pareto)


def _middle(point: FrontierPoint) -> XY:
    return point.speed.mid, 100 * point.score.mid


def _speed(point: FrontierPoint) -> tuple[float, list[list[float]]]:
    value = point.speed
    return value.mid, [[value.mid - value.low], [value.high - value.mid]]


def _score(point: FrontierPoint) -> tuple[float, list[list[float]] | None]:
    value = point.score
    if value.low is None or value.high is None:
        return 100 * value.mid, None
    return 100 * value.mid, [[100 * (value.mid - value.low)], [100 * (value.high - value.mid)]]


def _label(axes: Axes, points: Sequence[FrontierPoint], wide: float) -> None:
    """Write at each marker what its features are, where that covers least: first at those that are not beaten."""
    best = [_inches(axes, middle, wide) for middle in _front(points)]
    taken = [*along(best, _LINE_IN), *(box for point in points for box in _taken(axes, point, wide))]
    words, _ = words_of(points)
    for point, text in sorted(zip(points, words, strict=True), key=lambda pair: not pair[0].is_pareto):
        spots = list(_around(_inches(axes, _middle(point), wide), width_in(text, TICK_PT), line_in(TICK_PT) * _LETTER))
        spot = clearest(spots, taken, wide, _TALL_IN)
        taken += spot.boxes
        x, y = spot.corner
        axes.text(x / wide, y / _TALL_IN, text, transform=axes.transAxes, fontsize=TICK_PT, color=INK, zorder=4)


def _taken(axes: Axes, point: FrontierPoint, wide: float) -> Iterator[Box]:
    """Marker and whiskers."""
    (x, y), speed, score = _middle(point), point.speed, point.score
    yield around(_inches(axes, (x, y), wide), _MARKER_IN)
    yield _whisker(axes, (speed.low, y), (speed.high, y), wide)
    if score.low is not None and score.high is not None:
        yield _whisker(axes, (x, 100 * score.low), (x, 100 * score.high), wide)


def _whisker(axes: Axes, start: XY, end: XY, wide: float) -> Box:
    (left, bottom), (right, top) = _inches(axes, start, wide), _inches(axes, end, wide)
    return Box(left=left - _LINE_IN, bottom=bottom - _LINE_IN, right=right + _LINE_IN, top=top + _LINE_IN)


def _inches(axes: Axes, point: XY, wide: float) -> XY:
    (x0, x1), (y0, y1) = axes.get_xlim(), axes.get_ylim()
    return wide * (point[0] - x0) / (x1 - x0), _TALL_IN * (point[1] - y0) / (y1 - y0)


def _around(center: XY, wide: float, tall: float) -> Iterator[Spot]:
    """Places for a level line of text around a marker: right above first, each further off once."""
    for reach, (right, up) in product((_CLEAR_IN, 2.5 * _CLEAR_IN), product((1, -1, 0), (1, -1, 0))):
        x = center[0] + (reach if right > 0 else -reach - wide if right < 0 else -wide / 2)
        y = center[1] + (reach if up > 0 else -reach - tall if up < 0 else -tall / 2)
        box = Box(left=x - _APART_IN, bottom=y, right=x + wide + _APART_IN, top=y + tall)
        yield Spot(corner=(x, y), angle=0.0, boxes=(box,), far=reach > _CLEAR_IN)
