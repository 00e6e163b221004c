"""The sheet that a figure is drawn on: title, legend, plots, caption, and the marks that have tooltips."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any

from matplotlib import style as looks_of_matplotlib
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
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
_LEAST_IN = 0.3  # of a plot
_AROUND_IN = 0.055  # axes with the names around them
_FIRST_IN = (0.35, 0.3, 0.1, 0.15)  # what names take of a plot's room before they are measured
_PLACE_IN = 0.65  # a bar with the space beside it, at most

Key = tuple[str, ...]
_Place = tuple[int, int, int]  # a row, and the columns from one up to another
_Edges = tuple[float, float, float, float]  # inches to the left, below, to the right, above


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
        self._heights, self._entries, self._columns = heights, legend, columns
        self._places: dict[Axes, _Place] = {}
        self._spans: dict[Axes, tuple[float, float]] = {}
        self._names: dict[Text, str] = {}
        self._title_in, self._foot_in = 0.0, 0.0
        self._lines: list[Artist] = []

    def axes_in(self, row: int, left: int = 0, right: int | None = None, title: str = "") -> Axes:
        """Axes in a row of plots, from one column up to another."""
        axes = self.add_axes((0.0, 0.0, 1.0, 1.0))
        axes.set_title(self.style.text(title))
        self._places[axes] = row, left, self._columns if right is None else right
        return axes

    def share_unit(self, axes: Axes) -> None:
        """Make a unit of x as long in these axes as in all others that share it, which end where their bars do."""
        self._spans[axes] = axes.get_xlim()

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
        words = [self.style.text(one) for one in title]
        small = any(width_in(one, label_pt()) > room_in for one in words)
        title_pt = caption_pt() if small else label_pt()
        above = [line for one in words for line in wrapped(one, title_pt, room_in)]
        below = wrapped(" ".join(self.caption), caption_pt(), room_in)
        legend, tall = self._legend(room_in)
        self._title_in = _EDGE_IN + len(above) * line_in(title_pt) if above else 0.0
        self._foot_in = (len(below) + 0.7) * line_in(caption_pt())
        head_in = self._title_in + _EDGE_IN + sum(tall)
        self._place(head_in)
        self._lines = self._write(below, self._foot_in, caption_pt())
        self._write(above, self.get_figheight(), title_pt)
        top = self._title_in + _EDGE_IN
        for entries, each_in in zip(legend, tall, strict=True):
            self._draw_legend(entries, 1 - top / self.get_figheight())
            top += each_in
        for label in self.labels:
            label()
        return self

    def _place(self, head_in: float) -> None:
        """Give the plots their room between head and foot, as high as asked for.

        Names are broken where they have no room, which changes what they take of it: they are measured twice.
        """
        renderer: Any = self.canvas.get_renderer()  # type: ignore[attr-defined]
        self._names = {text: text.get_text() for axes in self.axes for text in _names_of(axes)}
        fixed_in = self.style.height and self.style.height - head_in + self._title_in
        around = dict.fromkeys(self.axes, _FIRST_IN)
        for _ in range(2):
            self._arrange(around, head_in, fixed_in)
            self._break_names()
            for one in self.fits:
                one()
            around = {axes: self._around(axes, renderer) for axes in self.axes}
        self._arrange(around, head_in, fixed_in)

    def _around(self, axes: Axes, renderer: Any) -> _Edges:
        """Inches that names take to the left of a plot, below, to the right, and above it."""
        plot, whole = axes.get_window_extent(renderer), axes.get_tightbbox(renderer, for_layout_only=True)
        if whole is None or not axes.axison:
            return 0.0, 0.0, 0.0, 0.0
        edges = plot.x0 - whole.x0, plot.y0 - whole.y0, whole.x1 - plot.x1, whole.y1 - plot.y1
        left, below, right, above = (round(max(0.0, edge) / DPI, 3) for edge in edges)
        return left, below, right, above

    def _arrange(self, around: Mapping[Axes, _Edges], head_in: float, fixed_in: float | None) -> None:
        """Place all axes, given what names take around each; `fixed_in` inches for the rows, else their heights."""
        rows = range(len(self._heights))
        inside = [[around[axes] for axes, place in self._places.items() if place[0] == row] for row in rows]
        below, above = ([max((edges[n] for edges in row), default=0.0) + _AROUND_IN for row in inside] for n in (1, 3))
        names_in = sum(below) + sum(above)
        scale = (fixed_in - names_in) / sum(self._heights) if fixed_in else 1.0
        tall = [scale * height for height in self._heights]
        rooms = {axes: self._room(axes, around) for axes in self.axes}
        if min(tall) < _LEAST_IN * min(1.0, *self._heights) or min(width for _, width in rooms.values()) < _LEAST_IN:
            size = f"{self.get_figwidth():g} by {self.style.height or self.get_figheight():.3g} inches"
            raise RequestError(f"figure of {size}: no room for its plots, set a larger width or height")
        wide, high = self.get_figwidth(), round(sum(tall) + names_in + head_in + self._foot_in, 3)
        self.set_figheight(high)
        for axes, (left, width) in self._shared(rooms).items():
            row = self._places[axes][0]
            top = head_in + sum(tall[:row]) + sum(below[:row]) + sum(above[: row + 1])
            bounds = left / wide, 1 - (top + tall[row]) / high, width / wide, tall[row] / high
            axes.set_position(tuple(round(edge, 5) for edge in bounds))  # type: ignore[arg-type]

    def _room(self, axes: Axes, around: Mapping[Axes, _Edges]) -> tuple[float, float]:
        """Left edge and width of a plot: those of rows with the same columns are below each other."""
        row, begin, end = self._places[axes]
        lines = [{p[1:] for p in self._places.values() if p[0] == line} for line in range(len(self._heights))]
        _, pattern = max((len(one), sorted(one)) for one in lines if one >= lines[row])
        sides = {
            span: [
                max(edges[side] for axes, edges in around.items() if self._places[axes][1:] == span) + _AROUND_IN
                for side in (0, 2)
            ]
            for span in pattern
        }
        each = (self.get_figwidth() - sum(map(sum, sides.values()))) / self._columns
        before = sum(map(sum, (sides[span] for span in pattern if span[0] < begin)))
        return before + sides[begin, end][0] + begin * each, (end - begin) * each

    def _shared(self, rooms: Mapping[Axes, tuple[float, float]]) -> dict[Axes, tuple[float, float]]:
        """Left edges and widths. Axes that share a unit have no more room than they need, but for the widest."""
        places, spans = dict(rooms), {axes: high - low for axes, (low, high) in self._spans.items()}
        unit = min((_PLACE_IN, *(rooms[axes][1] / span for axes, span in spans.items())))
        for axes, span in spans.items():
            left, room = rooms[axes]
            named = max(width_in(self._names[text], label_pt()) for text in _names_of(axes)[:2])
            width = room if span == max(spans.values()) else min(room, max(unit * span, named))
            low, high = self._spans[axes]
            spare = (width / unit - span) / 2
            axes.set_xlim(low - spare, high + spare)
            places[axes] = left, width
        return places

    def _break_names(self) -> None:
        """Titles and names of axes in as many lines as their axes have no room for."""
        for axes in self.axes:
            width, height = self.size_of(axes)
            for text, room_in in zip(_names_of(axes), (width, width, height), strict=True):
                text.set_text("\n".join(wrapped(self._names[text], float(text.get_fontsize()), max(room_in, 0.5))))

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
