"""The sheet that a figure is drawn on: title, legend, plots, caption, and the marks that have tooltips."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any

from matplotlib import style as looks_of_matplotlib
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from ktbench.report.figures.style import (
    COLUMN_IN,
    DPI,
    PAGE_IN,
    balanced,
    caption_pt,
    label_pt,
    line_in,
    look_of,
    packed,
    width_in,
    wrapped,
)
from ktbench.spec.errors import RequestError
from ktbench.spec.sweep import FigureStyle

PLOT_IN = 1.9
_SHOWN_DPI = 120
_EDGE_IN = 0.05
_HANDLE_IN = 0.36  # a handle of the legend with the space around it
_LEAST_IN, _NAMES_IN = 0.3, 3.0  # of a plot; of a row for names, before it is known what they take
_AROUND_IN = 0.055  # axes with the names around them

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

    Rows of plots have their heights in inches, whatever the names around them take; title, legend and caption have
    room of their own above and below. Recipes draw, and what depends on the room of a plot waits for `settle`: `fits`
    may change names around plots, `labels` write into plots that have their place.
    """

    def __init__(
        self,
        style: FigureStyle,
        caption: Sequence[str],
        heights: Sequence[float],
        *,
        columns: int = 1,
        width: float = PAGE_IN,
        legend: Sequence[Artist] = (),
    ) -> None:
        """`width` inches unless the style says another, `heights` inches for the rows of plots."""
        self.style, self.look, self.caption = style, look_of(style), tuple(caption)
        super().__init__(figsize=(style.width or width, sum(heights)), dpi=DPI)
        FigureCanvasAgg(self)
        self.marks: dict[str, tuple[Mark, ...]] = {}
        self.fits: list[Callable[[], object]] = []
        self.labels: list[Callable[[], object]] = []
        self._heights, self._entries = heights, legend
        self._grid = self.add_gridspec(len(heights), columns, height_ratios=heights)
        self._rows: dict[int, Axes] = {}
        self._title_in, self._foot_in = 0.0, 0.0
        self._lines: list[Artist] = []

    def axes_in(self, row: int, left: int = 0, right: int | None = None, title: str = "") -> Axes:
        """Axes in a row of plots, from one column up to another."""
        axes = self.add_subplot(self._grid[row, left:right])
        axes.set_title(self.style.text(title))
        self._rows.setdefault(row, axes)
        return axes

    def name_axes(self, axes: Axes, x: str = "", y: str = "") -> None:
        """The names below and beside axes, which are broken where they have no room."""
        axes.set_xlabel(self.style.text(x))
        axes.set_ylabel(self.style.text(y))

    def size_of(self, axes: Axes) -> tuple[float, float]:
        """Width and height of axes in inches, as they are laid out so far."""
        box = axes.get_position()
        return float(box.width * self.get_figwidth()), float(box.height * self.get_figheight())

    def settle(self, *title: str) -> Sheet:
        """Lay out everything, write title, legend and caption. Raises RequestError where plots have no room."""
        room_in = self.get_figwidth() - 2 * _EDGE_IN
        above = [line for one in title for line in wrapped(self.style.text(one), label_pt(), room_in)]
        below = wrapped(" ".join(self.caption), caption_pt(), room_in)
        legend, tall = self._legend(room_in)
        self._title_in = _EDGE_IN + len(above) * line_in(label_pt()) if above else 0.0
        self._foot_in = (len(below) + 0.7) * line_in(caption_pt())
        head_in = self._title_in + _EDGE_IN + sum(tall)
        self._place(head_in)
        self._lines = self._write(below, self._foot_in, caption_pt())
        self._write(above, self.get_figheight(), label_pt())
        top = self._title_in + _EDGE_IN
        for entries, each_in in zip(legend, tall, strict=True):
            self._draw_legend(entries, 1 - top / self.get_figheight())
            top += each_in
        for label in self.labels:
            label()
        return self

    def _place(self, head_in: float) -> None:
        """Give the plots their room between head and foot, as high as asked for."""
        wanted, around = sum(self._heights), head_in + self._foot_in
        fixed_in = self.style.height and self.style.height - head_in + self._title_in
        names = {text: text.get_text() for axes in self.axes for text in _names_of(axes)}
        engine = ConstrainedLayoutEngine(w_pad=_AROUND_IN, h_pad=_AROUND_IN, wspace=0.01, hspace=0.01)
        self.set_layout_engine(engine)

        def lay_out(plots_in: float) -> float:
            """Into so many inches; returns how many of them are not of plots."""
            height = round(plots_in + around, 3)
            self.set_figheight(height)
            engine.set(rect=(0, self._foot_in / height, 1, 1 - around / height))
            with warnings.catch_warnings():
                warnings.filterwarnings("error", "constrained_layout not applied")
                engine.execute(self)
            return height - around - sum(self.size_of(axes)[1] for axes in self._rows.values())

        def fit() -> None:
            self._break_names(names)
            for one in self.fits:
                one()

        try:
            spare = wanted + _NAMES_IN * len(self._heights)  # room for upright names
            lay_out(spare)
            fit()
            names_in = lay_out(spare)
            if fixed_in and fixed_in - names_in < _LEAST_IN * len(self._heights):
                raise UserWarning
            names_in = lay_out(fixed_in or wanted + names_in)
            fit()
            names_in = lay_out(fixed_in or wanted + names_in)
            lay_out(fixed_in or wanted + names_in)
        except UserWarning:
            size = f"{self.get_figwidth():g} by {self.style.height or self.get_figheight():.3g} inches"
            raise RequestError(f"figure of {size}: no room for its plots, set a larger width or height") from None
        self.set_layout_engine("none")
        for axes in self.axes:  # the last digits are those of a solver
            left, bottom, width, height = (round(float(edge), 5) for edge in axes.get_position().bounds)
            axes.set_position((left, bottom, width, height))

    def _break_names(self, names: Mapping[Text, str]) -> None:
        """Titles and names of axes in as many lines as their axes have no room for."""
        for axes in self.axes:
            width, height = self.size_of(axes)
            for text, room_in in zip(_names_of(axes), (width, width, height), strict=True):
                text.set_text("\n".join(wrapped(names[text], float(text.get_fontsize()), max(room_in, 0.5))))

    def _write(self, lines: Sequence[str], top_in: float, size_pt: float) -> list[Artist]:
        """Lines of text, the first below `top_in` inches from the lower edge."""
        width, height = self.get_size_inches()
        return [
            self.text(_EDGE_IN / width, (top_in - number * line_in(size_pt)) / height, line, fontsize=size_pt)
            for number, line in enumerate(lines, start=1)
        ]

    def _legend(self, room_in: float) -> tuple[list[list[Artist]], list[float]]:
        """Entries in lines that fit, and how high those are."""

        def text(entry: Artist) -> str:
            return str(entry.get_label())

        for entry in self._entries:
            entry.set_label("\n".join(wrapped(self.style.text(text(entry)), label_pt(), room_in - _HANDLE_IN)))
        lines = packed(
            self._entries,
            lambda line: sum(width_in(text(entry), label_pt()) + _HANDLE_IN for entry in line) <= room_in,
        )
        high = [max(text(entry).count("\n") + 1 for entry in line) for line in lines]
        return lines, [1.2 * count * line_in(label_pt()) + 0.02 for count in high]

    def _draw_legend(self, entries: Sequence[Artist], top: float) -> None:
        self.legend(
            handles=list(entries),
            loc="upper center",
            bbox_to_anchor=(0.5, top),
            ncols=len(entries),
            frameon=False,
            borderpad=0,
            borderaxespad=0,
            handlelength=1.6,
            handletextpad=0.4,
            columnspacing=1.0,
        )

    def plots_box(self, *, title: bool = True) -> Bbox:
        """The sheet above its caption, and below its title where that is left out, in inches."""
        width, height = self.get_size_inches()
        return Bbox([[0.0, self._foot_in], [width, height if title else height - self._title_in]])

    def show_caption(self, visible: bool) -> None:
        """Draw the caption or leave it out."""
        for line in self._lines:
            line.set_visible(visible)

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        """For notebooks, which otherwise show figures of pyplot alone: the picture, and its size in pixels."""
        file = BytesIO()
        with looks_of_matplotlib.context(self.look):
            self.savefig(file, format="png", dpi=DPI)
        width, height = (round(_SHOWN_DPI * inches) for inches in self.get_size_inches())
        return file.getvalue(), {"width": width, "height": height}


def _names_of(axes: Axes) -> tuple[Text, Text, Text]:
    return axes.title, axes.xaxis.label, axes.yaxis.label


@dataclass(frozen=True, kw_only=True, slots=True)
class Room:
    """Equal panels `tall_in` inches high, at most `most` abreast and each at least `least_in` wide with its names.

    The sheet is `width` wide, unless a style says otherwise; without one as a column for one panel, else as a page.
    """

    tall_in: float = PLOT_IN
    most: int = 1
    least_in: float = 1.5
    width: float | None = None


def panel_sheet(
    style: FigureStyle, caption: Sequence[str], titles: Sequence[str], room: Room, legend: Sequence[Artist] = ()
) -> tuple[Sheet, list[Axes], Callable[[int], bool]]:
    """A sheet with a panel for each title; returns the axes, and which of them begin a line."""
    wide = style.width or room.width or (COLUMN_IN if len(titles) == 1 else PAGE_IN)
    columns = balanced(len(titles), min(room.most, int(wide / room.least_in)))
    lines = -(-len(titles) // columns)
    sheet = Sheet(style, caption, [room.tall_in] * lines, columns=columns, width=wide, legend=legend)
    places = [divmod(n, columns) for n in range(len(titles))]
    every = [
        sheet.axes_in(line, column, column + 1, title) for (line, column), title in zip(places, titles, strict=True)
    ]
    return sheet, every, lambda n: n % columns == 0


def mark(artist: Artist, *marks: Mark) -> None:
    """Give an artist of a sheet an id and say what it shows: one mark in all, or one for each marker of a line."""
    figure: Any = artist.get_figure(root=True)
    assert isinstance(figure, Sheet)
    gid = f"mark-{len(figure.marks)}"
    artist.set_gid(gid)
    figure.marks[gid] = marks
