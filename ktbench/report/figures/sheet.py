"""The sheet that a figure is drawn on: style, size, caption, legend, axes, and the marks that have tooltips."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from math import ceil
from typing import Any

from matplotlib import style
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from ktbench.report.figures.text_metrics import CAPTION_PT, LABEL_PT, TICK_PT, line_in, packed, width_in, wrapped
from ktbench.results.intervals import Interval
from ktbench.results.scores import Estimate
from ktbench.results.usage import Spread

DPI, _SHOWN_DPI = 300, 120
COLUMN_IN, PAGE_IN = 3.5, 7.0
PLOT_IN, LEFT_IN, RIGHT_IN, TOP_IN = 1.9, 0.42, 0.05, 0.05
LEGEND_LINE_IN = 0.16
_HANDLE_IN = 0.36  # a handle with the space around it

# Fixed salt, no dates, fonts inside the file, no matplotlibrc of the user: the same rows give the same bytes.
_OURS: Any = {
    "font.family": "DejaVu Sans",
    "font.size": TICK_PT,
    "axes.labelpad": 2.0,
    "axes.labelsize": LABEL_PT,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlepad": 3.0,
    "axes.titlesize": LABEL_PT,
    "hatch.linewidth": 0.5,
    "pdf.fonttype": 42,
    "svg.fonttype": "path",
    "svg.hashsalt": "ktbench",
    "text.parse_math": False,
}
STYLE: Any = ["default", _OURS]
WHISKER: Any = {"elinewidth": 0.7, "capsize": 1.6, "capthick": 0.7}

Key = tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Mark:
    """What a bar, point or cell of a figure shows, by the key of its tooltip; `note` is about this mark alone.

    Keys: (cell,) for a cell; (cell, kind, subject) for one score of it; (group number, feature) for a share of the
    speed-up; (group number, feature, feature) for a pair; ("learned", arm) for trainings over seeds; (number id, cell)
    for a published number.
    """

    key: Key
    note: str = ""


class Sheet(Figure):
    """A figure with the sentences of its caption, and its marks by the id of their SVG element.

    Everything is placed in inches from the top, so that text keeps its size whatever the figure holds.
    """

    def __init__(self, width: float, plots_in: float, caption: Sequence[str], legend: Sequence[Artist] = ()) -> None:
        """`width` inches with the entries of the `legend`, `plots_in` inches for plots, and below them the caption."""
        lines = legend_lines(legend, width - 2 * RIGHT_IN)
        wrapped_caption = wrapped(" ".join(caption), CAPTION_PT, width - 2 * RIGHT_IN)
        self.head_in = TOP_IN + len(lines) * LEGEND_LINE_IN
        above_in = self.head_in + plots_in
        height = above_in + (len(wrapped_caption) + 0.5) * line_in(CAPTION_PT)
        super().__init__(figsize=(width, height), dpi=DPI)
        FigureCanvasAgg(self)
        self.caption = tuple(caption)
        self.caption_lines: list[Artist] = []
        self.marks: dict[str, tuple[Mark, ...]] = {}
        self._legend_tops: list[float] = []
        self.draw_legend(lines, TOP_IN)
        for number, line in enumerate(wrapped_caption, start=1):
            y = 1 - (above_in + number * line_in(CAPTION_PT)) / height
            self.caption_lines.append(self.text(RIGHT_IN / width, y, line, fontsize=CAPTION_PT))

    def add_title(self, *sentences: str) -> None:
        """Make the sheet higher by the lines of a title above all that is drawn; nothing else changes its size.

        Each sentence begins a line. A sheet gets one title.
        """
        room_in = self.get_figwidth() - 2 * RIGHT_IN
        lines = [line for sentence in sentences for line in wrapped(sentence, LABEL_PT, room_in)]
        before, added_in = self.get_figheight(), len(lines) * line_in(LABEL_PT) + TOP_IN
        height = before + added_in
        self.set_figheight(height)
        for axes in self.axes:
            left, bottom, width, tall = axes.get_position().bounds
            axes.set_position((left, bottom * before / height, width, tall * before / height))
        for text in self.texts:
            text.set_y(text.get_position()[1] * before / height)
        for legend, y in zip(self.legends, self._legend_tops, strict=True):
            legend.set_bbox_to_anchor((0.5, y * before / height))
        for number, line in enumerate(lines, start=1):
            y = 1 - number * line_in(LABEL_PT) / height
            self.text(RIGHT_IN / self.get_figwidth(), y, line, fontsize=LABEL_PT)

    @property
    def plots_box(self) -> Bbox:
        """The sheet above its caption, in inches."""
        width, height = self.get_size_inches()
        return Bbox([[0.0, len(self.caption_lines) * line_in(CAPTION_PT)], [width, height]])

    def show_caption(self, visible: bool) -> None:
        """Draw the caption or leave it out."""
        for line in self.caption_lines:
            line.set_visible(visible)

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        """For notebooks, which otherwise show figures of pyplot alone: the picture, and its size in pixels."""
        file = BytesIO()
        with style.context(STYLE):
            self.savefig(file, format="png", dpi=DPI)
        width, height = (round(_SHOWN_DPI * inches) for inches in self.get_size_inches())
        return file.getvalue(), {"width": width, "height": height}

    def axes_at(self, left: float, top: float, width: float, height: float = PLOT_IN, title: str = "") -> Axes:
        """Axes of `width` by `height` inches, `left` inches from the left edge and `top` inches below the legend."""
        wide, high = self.get_figwidth(), self.get_figheight()
        bottom = 1 - (self.head_in + top + height) / high
        axes = self.add_axes((left / wide, bottom, width / wide, height / high))
        axes.tick_params(labelsize=TICK_PT, width=0.6, length=2.5, pad=2)
        axes.set_title(title)
        return axes

    def draw_legend(self, lines: Sequence[Sequence[Artist]], top_in: float) -> None:
        """Legend lines, the first `top_in` inches below the top edge."""
        for number, line in enumerate(lines):
            self._legend_tops.append(1 - (top_in + number * LEGEND_LINE_IN) / self.get_figheight())
            self.legend(
                handles=list(line),
                loc="upper center",
                bbox_to_anchor=(0.5, self._legend_tops[-1]),
                ncols=len(line),
                fontsize=LABEL_PT,
                frameon=False,
                borderpad=0,
                borderaxespad=0,
                handlelength=1.6,
                handletextpad=0.4,
                columnspacing=1.0,
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class PanelGrid:
    """Cells for axes of one size, `columns` abreast on a sheet `width_in` inches wide.

    A cell has `above_in` inches for a title, `tall_in` for axes and `below_in` for the names of ticks and axis;
    `left_in` inches are free before the first cell of a line, `gap_in` between two.
    """

    count: int
    columns: int
    tall_in: float
    above_in: float
    below_in: float
    width_in: float = PAGE_IN
    left_in: float = LEFT_IN
    gap_in: float = LEFT_IN
    right_in: float = RIGHT_IN

    @property
    def each_in(self) -> float:
        """Width of axes."""
        return (self.width_in - self.left_in - self.right_in - (self.columns - 1) * self.gap_in) / self.columns

    @property
    def line_in(self) -> float:
        """Height of a line of cells."""
        return self.above_in + self.tall_in + self.below_in

    def place(self, n: int) -> tuple[float, float]:
        """Left and upper edge of the axes of cell `n`, for `Sheet.axes_at`."""
        line, column = divmod(n, self.columns)
        return self.left_in + column * (self.each_in + self.gap_in), line * self.line_in + self.above_in

    def is_leftmost(self, n: int) -> bool:
        """Whether cell `n` begins a line."""
        return n % self.columns == 0

    def sheet(self, caption: Sequence[str], legend: Sequence[Artist] = ()) -> Sheet:
        """A sheet with room for all cells."""
        return Sheet(self.width_in, ceil(self.count / self.columns) * self.line_in, caption, legend)

    def draw(
        self, titles: Sequence[str], caption: Sequence[str], legend: Sequence[Artist] = ()
    ) -> tuple[Sheet, list[Axes]]:
        """A sheet with titled axes in each cell."""
        figure = self.sheet(caption, legend)
        return figure, self.axes(figure, titles)

    def axes(self, figure: Sheet, titles: Sequence[str], top_in: float = 0.0) -> list[Axes]:
        """Titled axes in each cell, the first line of cells `top_in` inches below the legend of a sheet."""
        found = []
        for n, title in enumerate(titles):
            left, top = self.place(n)
            found.append(figure.axes_at(left, top_in + top, self.each_in, self.tall_in, title))
        return found


def balanced(count: int, most: int) -> int:
    """Columns, at most `most`, for `count` cells in as few lines as possible that are equally long or nearly so."""
    return ceil(count / ceil(count / most))


def scaled(value: Spread | Interval | Estimate, factor: float = 1.0) -> Spread:
    """A value and its ends times a factor; where it has no interval, the ends are its middle."""
    none = isinstance(value, Interval) and not value.has_ends
    low, high = (value.mid if none or end is None else end for end in (value.low, value.high))
    return Spread(low=factor * low, mid=factor * value.mid, high=factor * high)


def reach(values: Sequence[Spread | Interval]) -> list[list[float]] | None:
    """How far whiskers reach below and above values, as `errorbar` takes it; None where no value has an interval."""
    shown = [scaled(one) for one in values]
    below, above = [one.mid - one.low for one in shown], [one.high - one.mid for one in shown]
    return [below, above] if any(below) or any(above) else None


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


def legend_lines(entries: Sequence[Artist], width: float) -> list[list[Artist]]:
    """Labelled artists in lines that fit into `width` inches."""

    def needed(line: Sequence[Artist]) -> float:
        return sum(width_in(str(entry.get_label()), LABEL_PT) + _HANDLE_IN for entry in line)

    return packed(entries, lambda line: needed(line) <= width)
