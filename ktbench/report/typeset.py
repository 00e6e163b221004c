"""Tables in print: columns as wide as what they hold, numbers below each other by their points, rules, page breaks."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ktbench.report.figures.text_metrics import INK, line_in, parts_of, width_in, wrapped

FEWEST_ROWS = 4  # together on a page
_SIZES_PT = (6.8, 6.0)  # the smaller one where cells would take more lines than these
_MOST_LINES = 3
_GAP_IN = 0.14  # between columns
_PAD_IN = 0.03  # above and below what a rule is next to
_DESCENT = 0.22  # of a line, below its letters
_HEAVY_PT, _LIGHT_PT, _HAIR_PT = 0.8, 0.5, 0.25

Lines = tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class TypesetColumn:
    """A column `width_in` inches wide, its heading and cells in lines of that width.

    The points of `numeric` cells are below each other, `tail_in` inches left of the right edge.
    """

    heading: Lines
    cells: tuple[Lines, ...]
    numeric: bool
    width_in: float
    tail_in: float


@dataclass(frozen=True, kw_only=True, slots=True)
class TypesetTable:
    """Columns of a table in print, in letters of `size_pt`.

    Rows of `begins` are the first ones of a group, with a hairline above them.
    """

    size_pt: float
    columns: tuple[TypesetColumn, ...]
    begins: frozenset[int]

    @property
    def width_in(self) -> float:
        """From the left edge of the first column to the right edge of the last."""
        return sum(column.width_in for column in self.columns) + _GAP_IN * (len(self.columns) - 1)

    @property
    def frame_in(self) -> float:
        """Height of what a page has besides rows: headings and rules."""
        return self._headings_in + _PAD_IN

    @property
    def heights_in(self) -> tuple[float, ...]:
        """Height of each row, with the hairline above it; rows of several lines keep off the next."""
        deepest = (max(map(len, row)) for row in zip(*(column.cells for column in self.columns), strict=True))
        return tuple(
            lines * line_in(self.size_pt) + self._rule_in(row) + (_PAD_IN if lines > 1 else 0.0)
            for row, lines in enumerate(deepest)
        )

    def draw(self, page: Figure, rows: range, left_in: float, top_in: float) -> None:
        """Draw headings and `rows` on a page, inches from its left and upper edge."""
        pen = _Pen(page=page, size_pt=self.size_pt, left_in=left_in, width_in=self.width_in)
        size, heading_end = _Size(size_pt=self.size_pt), top_in + self._headings_in
        pen.rule(top_in, _HEAVY_PT)
        pen.rule(heading_end - _PAD_IN, _LIGHT_PT)
        for offset, column in self._placed():
            above = heading_end - 2 * _PAD_IN - len(column.heading) * line_in(self.size_pt)
            pen.cell(column.heading, offset, column.width_in, above, right=column.numeric)
        y = heading_end
        for row in rows:
            if row != rows.start and row in self.begins:
                pen.rule(y + _PAD_IN / 2, _HAIR_PT)
            for offset, column in self._placed():
                lines = column.cells[row]
                edge_in = column.width_in - (column.tail_in - size.tail_in(lines[0])) if column.numeric else 0.0
                pen.cell(lines, offset, edge_in, y + self._rule_in(row), right=column.numeric)
            y += self.heights_in[row]
        pen.rule(y + _PAD_IN, _HEAVY_PT)

    @property
    def _headings_in(self) -> float:
        return max(len(column.heading) for column in self.columns) * line_in(self.size_pt) + 4 * _PAD_IN

    def _rule_in(self, row: int) -> float:
        return _PAD_IN if row in self.begins else 0.0

    def _placed(self) -> Sequence[tuple[float, TypesetColumn]]:
        """Columns with the distance of each from the left edge."""
        widths = [column.width_in + _GAP_IN for column in self.columns]
        return [(sum(widths[:number]), column) for number, column in enumerate(self.columns)]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Pen:
    """Draws on a page within a table `left_in` inches from its left edge."""

    page: Figure
    size_pt: float
    left_in: float
    width_in: float

    def rule(self, y_in: float, weight_pt: float) -> None:
        wide, high = self.page.get_size_inches()
        ends = [self.left_in / wide, (self.left_in + self.width_in) / wide]
        level = 1 - y_in / high
        line = Line2D(ends, [level] * 2, color=INK, linewidth=weight_pt, transform=self.page.transFigure)
        self.page.add_artist(line)

    def cell(self, lines: Lines, offset_in: float, edge_in: float, y_in: float, *, right: bool) -> None:
        """Lines from `y_in` downwards, at the right edge where `right`."""
        wide, high = self.page.get_size_inches()
        x, align = (self.left_in + offset_in + (edge_in if right else 0.0)) / wide, "right" if right else "left"
        for number, line in enumerate(lines, start=1):
            y = 1 - (y_in + (number - _DESCENT) * line_in(self.size_pt)) / high
            self.page.text(x, y, line, fontsize=self.size_pt, color=INK, ha=align, va="baseline")


def typeset(
    headings: Sequence[str], rows: Sequence[Sequence[str]], numeric: Sequence[bool], room_in: float
) -> TypesetTable:
    """A table that fits into `room_in` inches: where its columns are wider, the widest are broken into lines."""
    cells = [[row[number] for row in rows] for number in range(len(headings))]
    first_number = next((number for number, right in enumerate(numeric) if right), len(numeric))
    columns, free_in = [*zip(headings, cells, numeric, strict=True)], room_in - _GAP_IN * (len(headings) - 1)
    for size_pt in _SIZES_PT:
        found = _columns(columns, _Size(size_pt=size_pt), free_in)
        if max((len(lines) for column in found for lines in column.cells), default=0) <= _MOST_LINES:
            break
    return TypesetTable(size_pt=size_pt, columns=found, begins=_begins(cells[:first_number]))


def split(heights_in: Sequence[float], first_in: float, page_in: float) -> list[range]:
    """Rows for each page, of which the first has room for `first_in` inches and others for `page_in`.

    A page has at least FEWEST_ROWS of them or all; the first range is empty where its page has not even that room.
    """
    starts, used_in, room_in = [0], 0.0, first_in
    for row, height in enumerate(heights_in):
        if used_in + height > room_in and (row > starts[-1] or room_in < page_in):
            starts.append(row)
            used_in, room_in = 0.0, page_in
        used_in += height
    if len(starts) > 1:
        starts[-1] = max(starts[-2], min(starts[-1], len(heights_in) - FEWEST_ROWS))
        if starts[1] < FEWEST_ROWS and first_in < page_in:
            return [range(0), *split(heights_in, page_in, page_in)]
    return [range(start, end) for start, end in pairwise([*starts, len(heights_in)])]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Size:
    """Letters of a size, and how wide text is in them."""

    size_pt: float

    def column(self, heading: str, cells: Sequence[str], numeric: bool, most_in: float) -> TypesetColumn:
        """A column at most so wide: numbers as wide, texts as their lines need."""
        head, *lines = (tuple(wrapped(text, self.size_pt, most_in)) for text in (heading, *cells))
        return TypesetColumn(
            heading=head,
            cells=tuple(lines),
            numeric=numeric,
            width_in=most_in if numeric else max(self._width_in(line) for cell in (head, *lines) for line in cell),
            tail_in=max(map(self.tail_in, cells), default=0.0) if numeric else 0.0,
        )

    def limits_in(self, heading: str, cells: Sequence[str], numeric: bool) -> tuple[float, float]:
        """The least width at which words are broken after signs alone, and the least for whole cells."""
        head_in = max(map(self._width_in, heading.split()))
        if numeric:
            tail_in = max(map(self.tail_in, cells), default=0.0)
            lead_in = max((self._width_in(cell) - self.tail_in(cell) for cell in cells), default=0.0)
            return (max(head_in, lead_in + tail_in),) * 2
        parts = (part for cell in cells for word in cell.split() for part in parts_of(word))
        return max([head_in, *map(self._width_in, parts)]), max([head_in, *map(self._width_in, cells)])

    def tail_in(self, text: str) -> float:
        """Width of a number from its point on."""
        _, point, digits = text.partition(".")
        return self._width_in(point + digits) if point else 0.0

    def _width_in(self, text: str) -> float:
        return width_in(text, self.size_pt)


def _columns(
    columns: Sequence[tuple[str, Sequence[str], bool]], size: _Size, room_in: float
) -> tuple[TypesetColumn, ...]:
    """Columns that fit into the room: equally wide, but for those that can do with less or need more."""
    limits = [size.limits_in(*column) for column in columns]
    if sum(least for least, _ in limits) > room_in:
        limits = [(0.0, most) for _, most in limits]

    def widths(common_in: float) -> list[float]:
        return [max(least, min(most, common_in)) for least, most in limits]

    # To a hundredth of an inch.
    common = bisect_right(range(round(100 * room_in)), room_in, key=lambda number: sum(widths(number / 100))) - 1
    return tuple(size.column(*column, width) for column, width in zip(columns, widths(common / 100), strict=True))


def _begins(texts: Sequence[Sequence[str]]) -> frozenset[int]:
    """First rows of groups: where the text that changes least changes; none where groups have hardly two rows."""
    changes = ([row for row, (one, other) in enumerate(pairwise(column), start=1) if one != other] for column in texts)
    found = [rows for rows, column in zip(changes, texts, strict=True) if 0 < len(rows) < len(column) / 2]
    return frozenset(min(found, key=len, default=()))
