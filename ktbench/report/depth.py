"""Speed over the setting that a sweep varies in most steps, such as the depth of the context."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ktbench.report.curves import CurvePanel, absences, axis_of, names_of, panels_of
from ktbench.report.frame import Frame, decades
from ktbench.report.lettering import LABEL_PT
from ktbench.report.lines import draw_curves, name_references
from ktbench.report.panels import is_leftmost, place_panels
from ktbench.report.sheet import PLOT_IN
from ktbench.report.spots import XY
from ktbench.report.table import Table
from ktbench.results.row import Row
from ktbench.results.usage import Spread

_WIDE = 8.0  # from this ratio of largest to least on a linear axis loses the small ones
_MARGIN, _ROOM_ABOVE = 0.06, 1.12


def draw_depth(rows: Sequence[Row], table: Table) -> Figure:
    """A panel for each precision, a line for each arm and each value of what varies beside the axis."""
    axis = axis_of(rows)
    panels = panels_of(rows, _speed, axis)
    caption = [table.figure_caption, *absences(rows, _speed, axis), *table.conditions]
    titles = [f"{panel.precision} weights" if len(panels) > 1 else "" for panel in panels]
    log_y = all(map(_is_tall, panels))  # one kind of scale, so that the panels look as they compare
    figure, placed = place_panels(panels, rows, caption, titles, shared=False, roofs=False)
    for n, (panel, (axes, width)) in enumerate(zip(panels, placed, strict=True)):
        if is_leftmost(n, len(panels)):
            axes.set_ylabel("tokens/s", fontsize=LABEL_PT, labelpad=2)
        frame = _frame(axes, width, panel, axis.name, log_y)
        draw_curves(frame, panel, names_of(panels), bands=True)
        name_references(frame, panel)
    return figure


def _speed(row: Row) -> Spread | None:
    speed = row.tokens_per_s
    return None if speed is None else Spread(low=speed.low, mid=speed.mid, high=speed.high)


def _is_tall(panel: CurvePanel) -> bool:
    return bool(panel.points) and _is_wide([p.y.low for p in panel.points], [p.y.high for p in panel.points])


def _frame(axes: Axes, width: float, panel: CurvePanel, name: str, log_y: bool) -> Frame:
    xs = sorted({point.x for point in panel.points}) or [1.0]
    log_x, x = _range_x(xs)
    lows, highs = [point.y.low for point in panel.points] or [1.0], [point.y.high for point in panel.points] or [1.0]
    y = (min(lows) / _ROOM_ABOVE, max(highs) * _ROOM_ABOVE) if log_y else (0.0, max(highs) * _ROOM_ABOVE)
    frame = Frame(axes=axes, width_in=width, height_in=PLOT_IN, x=x, y=y, x_name=name, log_x=log_x, log_y=log_y)
    linear = [tick for tick in MaxNLocator(6, steps=[1, 2, 5, 10]).tick_values(*y) if tick <= y[1]]
    frame.ticks(xs, decades(*y) if log_y else linear)
    return frame


def _range_x(xs: Sequence[float]) -> tuple[bool, XY]:
    """Whether the axis is logarithmic, and its limits with some room beside the outermost points."""
    low, high = min(xs), max(xs)
    if _is_wide([low], [high]):
        room = (high / low) ** _MARGIN
        return True, (low / room, high * room)
    room = _MARGIN * (high - low) or 1.0
    return False, (low - room, high + room)


def _is_wide(lows: Sequence[float], highs: Sequence[float]) -> bool:
    return min(lows) > 0 and max(highs) >= _WIDE * min(lows)
