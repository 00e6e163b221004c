"""The legend above the panels of a figure, in as many lines as its width asks for."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from ktbench.report.figures.text_metrics import CAPTION_PT, LABEL_PT, line_in, width_in, wrapped

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


LEGEND_LINE_IN = 0.16
_HANDLE_IN = 0.36  # a handle with the space around it


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
