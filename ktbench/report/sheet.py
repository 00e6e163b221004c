"""The sheet that a figure is drawn on: as wide as a column or a page of a paper, with its caption at the foot."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from ktbench.report.lettering import CAPTION_PT, line_in, wrapped

DPI = 300
COLUMN_IN, PAGE_IN = 3.5, 7.0
_CAPTION = "caption"
PLOT_IN, LEFT_IN, RIGHT_IN, TOP_IN = 1.9, 0.42, 0.05, 0.05


def sheet(width: float, plots_in: float, caption: Sequence[str]) -> Figure:
    """A figure of `width` inches with `plots_in` inches for plots and, below them, the sentences of the caption.

    Everything is placed in inches from the top, so that text keeps its size whatever the figure holds.
    """
    lines = wrapped(" ".join(caption), CAPTION_PT, width - 2 * RIGHT_IN)
    height = plots_in + (len(lines) + 0.5) * line_in(CAPTION_PT)
    figure = Figure(figsize=(width, height), dpi=DPI)
    FigureCanvasAgg(figure)
    figure.set_label("\n".join(caption))
    for number, line in enumerate(lines, start=1):
        y = 1 - (plots_in + number * line_in(CAPTION_PT)) / height
        figure.text(RIGHT_IN / width, y, line, fontsize=CAPTION_PT, label=_CAPTION)
    return figure


def caption_of(figure: Figure) -> list[str]:
    """The sentences at the foot of a sheet."""
    return str(figure.get_label()).split("\n")


def without_caption(figure: Figure) -> Bbox:
    """Take the caption off a sheet; the box, in inches, that holds the rest."""
    width, height = figure.get_size_inches()
    lines = [text for text in figure.texts if text.get_label() == _CAPTION]
    for line in lines:
        line.set_visible(False)
    top = max((line.get_position()[1] * height + line_in(CAPTION_PT) for line in lines), default=0.0)
    return Bbox([[0.0, top], [width, height]])


def axes_at(figure: Figure, left: float, top: float, width: float, height: float = PLOT_IN) -> Axes:
    """Axes of `width` by `height` inches, `left` and `top` inches from the upper left corner."""
    wide, high = figure.get_figwidth(), figure.get_figheight()
    return figure.add_axes((left / wide, 1 - (top + height) / high, width / wide, height / high))
