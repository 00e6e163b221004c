"""The sheet that a figure is drawn on: style, size, caption, legend, and the marks that tooltips are attached to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from ktbench.report.figures.text_metrics import CAPTION_PT, LABEL_PT, TICK_PT, line_in, width_in, wrapped

DPI = 300
COLUMN_IN, PAGE_IN = 3.5, 7.0
PLOT_IN, LEFT_IN, RIGHT_IN, TOP_IN = 1.9, 0.42, 0.05, 0.05
LEGEND_LINE_IN = 0.16
_HANDLE_IN = 0.36  # a handle with the space around it

# Fixed salt, no dates, fonts inside the file, no matplotlibrc of the user: the same rows give the same bytes.
_OURS: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 7.0,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "hatch.linewidth": 0.5,
    "pdf.fonttype": 42,
    "svg.fonttype": "path",
    "svg.hashsalt": "ktbench",
    "text.parse_math": False,
}
STYLE: Any = ["default", _OURS]

Key = tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Mark:
    """What a bar, point or cell of a figure shows, by the key of its tooltip; `note` is about this mark alone.

    Keys: (cell,) for a cell; (cell, kind, subject) for one score of it; (group number, feature) for a share of the
    speed-up; (group number, feature, feature) for a pair; (number id, cell) for a published number.
    """

    key: Key
    note: str = ""


class Sheet(Figure):
    """A figure with the sentences of its caption, and its marks by the id of their SVG element."""

    def __init__(self, size_in: tuple[float, float], caption: Sequence[str]) -> None:
        super().__init__(figsize=size_in, dpi=DPI)
        FigureCanvasAgg(self)
        self.caption = tuple(caption)
        self.caption_lines: list[Artist] = []
        self.marks: dict[str, tuple[Mark, ...]] = {}

    @property
    def plots_box(self) -> Bbox:
        """The sheet above its caption, in inches."""
        width, height = self.get_size_inches()
        return Bbox([[0.0, len(self.caption_lines) * line_in(CAPTION_PT)], [width, height]])

    def show_caption(self, visible: bool) -> None:
        """Draw the caption or leave it out."""
        for line in self.caption_lines:
            line.set_visible(visible)


def sheet(width: float, plots_in: float, caption: Sequence[str]) -> Sheet:
    """A figure of `width` inches with `plots_in` inches for plots and, below them, the sentences of the caption.

    Everything is placed in inches from the top, so that text keeps its size whatever the figure holds.
    """
    lines = wrapped(" ".join(caption), CAPTION_PT, width - 2 * RIGHT_IN)
    height = plots_in + (len(lines) + 0.5) * line_in(CAPTION_PT)
    figure = Sheet((width, height), caption)
    for number, line in enumerate(lines, start=1):
        y = 1 - (plots_in + number * line_in(CAPTION_PT)) / height
        figure.caption_lines.append(figure.text(RIGHT_IN / width, y, line, fontsize=CAPTION_PT))
    return figure


def mark(artist: Artist, *marks: Mark) -> None:
    """Give an artist of a sheet an id and say what it shows: one mark in all, or one for each marker of a line."""
    figure = artist.get_figure(root=True)
    assert isinstance(figure, Sheet)
    gid = f"mark-{len(figure.marks)}"
    artist.set_gid(gid)
    figure.marks[gid] = marks


def mark_cells(artist: Artist, cells: Sequence[str]) -> None:
    """Mark an artist with cells, by their keys."""
    mark(artist, *(Mark(key=(cell,)) for cell in cells))


def axes_at(figure: Figure, left: float, top: float, width: float, height: float = PLOT_IN) -> Axes:
    """Axes of `width` by `height` inches, `left` and `top` inches from the upper left corner."""
    wide, high = figure.get_figwidth(), figure.get_figheight()
    return figure.add_axes((left / wide, 1 - (top + height) / high, width / wide, height / high))


def style_ticks(axes: Axes) -> None:
    """Ticks and their names as all figures have them."""
    axes.tick_params(labelsize=TICK_PT, width=0.6, length=2.5, pad=2)


def legend_lines(entries: Sequence[Artist], width: float) -> list[list[Artist]]:
    """Labelled artists in lines that fit into `width` inches."""
    lines: list[list[Artist]] = [[]]
    for entry in entries:
        if lines[-1] and sum(map(_entry_in, [*lines[-1], entry])) > width:
            lines.append([])
        lines[-1].append(entry)
    return lines if entries else []


def draw_legend(figure: Figure, lines: Sequence[Sequence[Artist]], top_in: float) -> None:
    """Legend lines, the first `top_in` inches below the top edge."""
    height = figure.get_figheight()
    for number, line in enumerate(lines):
        figure.legend(
            handles=list(line),
            loc="upper center",
            bbox_to_anchor=(0.5, 1 - (top_in + number * LEGEND_LINE_IN) / height),
            ncols=len(line),
            fontsize=LABEL_PT,
            frameon=False,
            borderpad=0,
            borderaxespad=0,
            handlelength=1.6,
            handletextpad=0.4,
            columnspacing=1.0,
        )


def _entry_in(entry: Artist) -> float:
    return width_in(str(entry.get_label()), LABEL_PT) + _HANDLE_IN
