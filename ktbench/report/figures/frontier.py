"""Decode speed against score: a marker for each cell, those that none beats in both joined."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from ktbench.report.accuracy_table import undrawn
from ktbench.report.figures.curves import REFERENCE, looks
from ktbench.report.figures.frame import Frame
from ktbench.report.figures.label_placement import XY
from ktbench.report.figures.sheet import LEFT_IN, PAGE_IN, RIGHT_IN, WHISKER, Sheet, mark_cells, reach, scaled
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
_ROOM = 0.08


def draw_frontier(rows: Sequence[AccuracyRow], caption: Sequence[str]) -> Sheet:
    """Tokens/s from left to right, the average score upwards. The look says the formats, the words the features."""
    points = list(frontier_of(rows).values())
    names = list(dict.fromkeys(formats_text(point.row) for point in points))
    figure = Sheet(PAGE_IN, _TALL_IN + _BELOW_IN, [*caption, *undrawn(rows)], _entries(points, names))
    axes = figure.axes_at(LEFT_IN, 0.0, PAGE_IN - LEFT_IN - RIGHT_IN, _TALL_IN)
    if points:
        _draw(axes, points, names)
    else:
        axes.set_axis_off()
    return figure


def _entries(points: Sequence[FrontierPoint], names: Sequence[str]) -> list[Line2D]:
    entries = [Line2D([], [], label=name, **_look(name, names, is_pareto=False)) for name in names]
    front: dict[str, Any] = {"color": REFERENCE, "linewidth": 0.8, "marker": "o", "markersize": 3.4}
    key = words_of(points)[1] if points else ""
    numbers = [Line2D([], [], label=f"numbers: {key}", linestyle="")] if key else []
    return [*entries, Line2D([], [], label="Pareto by the middles, filled", **front), *numbers]


def _look(name: str, names: Sequence[str], *, is_pareto: bool) -> dict[str, Any]:
    look = looks(names)[name]
    return look | {"linestyle": "", "markersize": 4.0, "markerfacecolor": look["color"] if is_pareto else "white"}


def _draw(axes: Axes, points: Sequence[FrontierPoint], names: Sequence[str]) -> None:
    for point in points:
        look = _look(formats_text(point.row), names, is_pareto=point.is_pareto)
        x, y = scaled(point.speed), scaled(point.score, 100)
        drawn = axes.errorbar([x.mid], [y.mid], xerr=reach([x]), yerr=reach([y]), zorder=3, **WHISKER, **look)
        mark_cells(drawn.lines[0], [point.row.row.cell])
    front = sorted(_middle(point) for point in points if point.is_pareto)
    axes.plot(*zip(*front, strict=True), color=REFERENCE, linewidth=0.8, zorder=2)
    axes.margins(_ROOM)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(8))
    axes.set_ylabel("average score, %")
    _label(Frame(axes=axes, x=axes.get_xlim(), y=axes.get_ylim(), x_name="decode speed, tokens/s"), points, front)


def _middle(point: FrontierPoint) -> XY:
    return point.speed.mid, 100 * point.score.mid


def _label(frame: Frame, points: Sequence[FrontierPoint], front: Sequence[XY]) -> None:
    """Write at each marker what its features are, where that covers least: first at those that are not beaten."""
    frame.take_line(front)
    for point in points:
        x, y = scaled(point.speed), scaled(point.score, 100)
        frame.take_marker((x.mid, y.mid))
        frame.take_line([(x.low, y.mid), (x.high, y.mid)])
        frame.take_line([(x.mid, y.low), (x.mid, y.high)])
    words, _ = words_of(points)
    for point, text in sorted(zip(points, words, strict=True), key=lambda pair: not pair[0].is_pareto):
        frame.label_marker(text, _middle(point))
