"""Panels of curves side by side on a sheet, below their common legend."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ktbench.report.curves import CurvePanel, names_of
from ktbench.report.legend import LEGEND_LINE_IN, draw_legend, legend_lines
from ktbench.report.lettering import LABEL_PT
from ktbench.report.lines import handles
from ktbench.report.rooflines import roof_handle
from ktbench.report.sheet import COLUMN_IN, LEFT_IN, PAGE_IN, PLOT_IN, RIGHT_IN, TOP_IN, axes_at, sheet
from ktbench.results.row import Row, roof_rows

_ABREAST = 4
_TITLE_IN, _BELOW_IN = 0.15, 0.34
_GAP_IN = 0.12


def place_panels(
    panels: Sequence[CurvePanel],
    rows: Sequence[Row],
    caption: Sequence[str],
    titles: Sequence[str],
    *,
    shared: bool,
    roofs: bool = True,
) -> tuple[Figure, list[tuple[Axes, float]]]:
    """A figure with titled axes for each panel and their width in inches.

    `shared`: one y axis for panels abreast; `roofs`: those of `rows` are drawn and stand in the legend.
    """
    columns = min(len(panels), ceil(len(panels) / ceil(len(panels) / _ABREAST)))
    width = COLUMN_IN if len(panels) == 1 else PAGE_IN
    gap = _GAP_IN if shared else LEFT_IN - 0.1
    each = (width - LEFT_IN - RIGHT_IN - (columns - 1) * gap) / columns
    legend = legend_lines(_entries(panels, rows if roofs else ()), width - 2 * RIGHT_IN)
    head = TOP_IN + len(legend) * LEGEND_LINE_IN
    tall = _TITLE_IN + PLOT_IN + _BELOW_IN
    figure = sheet(width, head + ceil(len(panels) / columns) * tall, caption)
    draw_legend(figure, legend, TOP_IN)
    placed = []
    for n, title in enumerate(titles):
        top = head + n // columns * tall + _TITLE_IN
        axes = axes_at(figure, LEFT_IN + n % columns * (each + gap), top, each)
        axes.set_title(title, fontsize=LABEL_PT, pad=2)
        placed.append((axes, each))
    return figure, placed


def _entries(panels: Sequence[CurvePanel], rows: Sequence[Row]) -> list[Artist]:
    noisy = any(point.noisy for panel in panels for curve in panel.curves for point in curve.points)
    entries = handles(names_of(panels), noisy=noisy)
    provenance = next((row.provenance for row in roof_rows(rows) if row.provenance and row.roof), None)
    return [*entries, roof_handle(provenance)] if provenance else entries


def is_leftmost(number: int, count: int) -> bool:
    """Whether a panel begins a row of panels."""
    return number % min(count, ceil(count / ceil(count / _ABREAST))) == 0
