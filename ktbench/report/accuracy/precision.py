"""Average score and its change over the format of the experts and of the device role, as a heat map."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ktbench.report.accuracy.cells import HeatCell, change_of_formats, score_of_formats
from ktbench.report.accuracy.heat import CELL_IN, HEAD_IN, draw_cells
from ktbench.report.lettering import LABEL_PT, TICK_PT, width_in
from ktbench.report.sheet import PAGE_IN, RIGHT_IN, TOP_IN, axes_at, sheet
from ktbench.results.accuracy import AccuracyRow, by_formats, formats_of

_FOOT_IN, _GAP_IN, _LABEL_IN = 0.36, 0.2, 0.16


def draw_precision(rows: Sequence[AccuracyRow], caption: Sequence[str]) -> Figure:
    """A panel of scores and one of relative changes, formats of the experts below each other."""
    experts, _ = formats_of(rows)
    left = max(width_in(name, TICK_PT) for name in experts) + 2 * RIGHT_IN + _LABEL_IN
    each = (PAGE_IN - left - RIGHT_IN - _GAP_IN) / 2
    tall = len(experts) * CELL_IN
    figure = sheet(PAGE_IN, TOP_IN + HEAD_IN + tall + _FOOT_IN, caption)
    for n, (title, cell) in enumerate(
        (("average score by format, %", score_of_formats), ("relative change by format, %", change_of_formats))
    ):
        axes = axes_at(figure, left + n * (each + _GAP_IN), TOP_IN + HEAD_IN, each, tall)
        _draw(axes, rows, cell)
        axes.set_title(title, fontsize=LABEL_PT, pad=3)
        axes.set_xlabel("device role", fontsize=LABEL_PT, labelpad=1)
        axes.set_yticks(range(len(experts)), experts if n == 0 else [""] * len(experts))
        if n == 0:
            axes.set_ylabel("experts", fontsize=LABEL_PT, labelpad=2)
    return figure


def _draw(axes: Axes, rows: Sequence[AccuracyRow], cell: Callable[[AccuracyRow], HeatCell]) -> None:
    experts, devices = formats_of(rows)
    places = {(devices.index(device), experts.index(name)): row for (name, device), row in by_formats(rows).items()}
    draw_cells(axes, {place: cell(row) for place, row in places.items()}, devices, len(experts))
