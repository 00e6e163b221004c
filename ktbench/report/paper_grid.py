"""Panels of the figures of published numbers: how many abreast, how wide, below which legend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ktbench.report.legend import LEGEND_LINE_IN, draw_legend, legend_lines
from ktbench.report.lettering import INK, LABEL_PT, TICK_PT
from ktbench.report.sheet import COLUMN_IN, LEFT_IN, PAGE_IN, RIGHT_IN, TOP_IN, axes_at, sheet

_ABREAST = 3
_TITLE_IN, _GAP_IN = 0.17, 0.08
PANEL_IN = 1.5

# Of each provenance, in the order of a table: published is hollow, what is ours is filled.
BAR_LOOKS: dict[str, dict[str, Any]] = {
    "published": {"facecolor": "#ffffff", "hatch": "//////"},
    "simulated": {"facecolor": "#4a76a3"},
    "measured here": {"facecolor": "#c0d5e8", "hatch": "....."},
}
EDGE: dict[str, Any] = {"edgecolor": INK, "linewidth": 0.6}


@dataclass(frozen=True, kw_only=True, slots=True)
class Grid:
    """Room for `count` panels, on a sheet as wide as a page, or as a column where `narrow`."""

    count: int
    narrow: bool = False

    @property
    def columns(self) -> int:
        """Panels abreast, so many that their rows are equally long or nearly so."""
        return ceil(self.count / ceil(self.count / _ABREAST))

    @property
    def sheet_in(self) -> float:
        """Width of the sheet."""
        return COLUMN_IN if self.narrow else PAGE_IN

    @property
    def panel_in(self) -> float:
        """Width of a panel's axes."""
        return (self.sheet_in - 2 * RIGHT_IN - self.columns * LEFT_IN) / self.columns

    def place(self, titles: Sequence[str], below_in: float, legend: Sequence[Artist], caption: Sequence[str]) -> Placed:
        """A figure with titled axes for each panel, below each of which there are `below_in` inches."""
        lines = legend_lines(legend, self.sheet_in - 2 * RIGHT_IN)
        head, tall = TOP_IN + len(lines) * LEGEND_LINE_IN, _TITLE_IN + PANEL_IN + below_in + _GAP_IN
        figure = sheet(self.sheet_in, head + ceil(self.count / self.columns) * tall, caption)
        draw_legend(figure, lines, TOP_IN)
        found = []
        for n, title in enumerate(titles):
            left = LEFT_IN + n % self.columns * (self.panel_in + LEFT_IN)
            axes = axes_at(figure, left, head + n // self.columns * tall + _TITLE_IN, self.panel_in, PANEL_IN)
            axes.set_title(title, fontsize=LABEL_PT, pad=3)
            axes.tick_params(labelsize=TICK_PT, width=0.6, length=2.5, pad=2)
            found.append(axes)
        return Placed(figure=figure, axes=tuple(found))


@dataclass(frozen=True, kw_only=True, slots=True)
class Placed:
    """A figure with the axes of its panels."""

    figure: Figure
    axes: tuple[Axes, ...]
