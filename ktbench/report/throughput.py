"""Throughput over tokens per expert against the roofs, in the form of KTransformers (SOSP'25), Fig. 3."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from ktbench.report.curves import CurvePanel, absences, names_of, panels_of
from ktbench.report.frame import Frame, decades
from ktbench.report.lettering import LABEL_PT
from ktbench.report.lines import draw_curves, name_references
from ktbench.report.panels import is_leftmost, place_panels
from ktbench.report.rooflines import Rooflines, draw_rooflines, rooflines
from ktbench.report.sheet import PLOT_IN
from ktbench.report.spots import XY
from ktbench.report.table import Table
from ktbench.report.text import unit_of
from ktbench.results.row import Row
from ktbench.results.settings import TOKENS
from ktbench.results.usage import Spread

_MARGIN = 1.6  # left and right of the outermost points, as a factor
_HEADROOM, _FOOTROOM = 2.0, 1.6


def draw_throughput(rows: Sequence[Row], table: Table) -> Figure:
    """A panel for each precision, all to one scale, with the roofs of its arms."""
    panels = panels_of(rows, _throughput)
    roofs = [rooflines(panel.rows, rows) for panel in panels]
    x, y = _range_x(panels), _range_y(panels, roofs)
    caption = [table.figure_caption, *absences(rows, _throughput), *table.conditions]
    figure, placed = place_panels(panels, rows, caption, [_title(panel) for panel in panels], shared=True)
    for n, (panel, (axes, width)) in enumerate(zip(panels, placed, strict=True)):
        first = is_leftmost(n, len(panels))
        frame = Frame(axes=axes, width_in=width, height_in=PLOT_IN, x=x, y=y, x_name=TOKENS, log_x=True, log_y=True)
        frame.ticks(sorted({point.x for panel in panels for point in panel.points}), decades(*y), named=first)
        if first:
            axes.set_ylabel("10¹² operations per second", fontsize=LABEL_PT, labelpad=2)
        _draw(frame, panel, roofs[n], names_of(panels))
    return figure


def _draw(frame: Frame, panel: CurvePanel, roofs: Rooflines, names: Sequence[str]) -> None:
    """Labels come last, when all that they must not cover is there."""
    lines = draw_rooflines(frame, roofs)
    draw_curves(frame, panel, names)
    name_references(frame, panel)
    for text, start, end in reversed(lines):
        frame.label(text, start, end)


def _throughput(row: Row) -> Spread | None:
    """10¹² operations/s."""
    if row.step_s is None or row.work is None:
        return None
    rate = row.step_s.per(row.work.flops / 1e12)
    return Spread(low=rate.low, mid=rate.mid, high=rate.high)


def _title(panel: CurvePanel) -> str:
    units = dict.fromkeys(unit_of(row.spec.dtype) for row in panel.rows)
    return f"{panel.precision} weights ({', '.join(units)})"


def _range_x(panels: Sequence[CurvePanel]) -> XY:
    values = [point.x for panel in panels for point in panel.points] or [1.0]
    return min(values) / _MARGIN, max(values) * _MARGIN


def _range_y(panels: Sequence[CurvePanel], roofs: Sequence[Rooflines]) -> XY:
    """From below the slowest point to above the highest roof that the tokens per expert reach."""
    points = [point.y for panel in panels for point in panel.points]
    right = _range_x(panels)[1]
    reached = [
        peak.mid / 1e12
        for roof in roofs
        for peak in roof.peaks.values()
        if roof.slope is None or peak.mid < roof.slope.mid * right
    ]
    highs = [*(y.high for y in points), *reached] or [1.0]
    return min([y.low for y in points] or [0.1]) / _FOOTROOM, max(highs) * _HEADROOM
