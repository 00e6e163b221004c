"""All published numbers of a run as one document to print: an overview, then of each part its figure and table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

from matplotlib import style
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_pdf import PdfPages
from matplotlib.figure import Figure

from ktbench.files import write_whole
from ktbench.report.documents import NUMERIC, Document, overview
from ktbench.report.figures.sheet import PAGE_IN, STYLE, Sheet
from ktbench.report.figures.text_metrics import INK, line_in, wrapped
from ktbench.report.typeset import TypesetTable, split, typeset
from ktbench.results import Run

_PAGE_IN = (8.27, 11.69)  # A4
_MARGIN_IN, _FOOT_IN = 0.63, 0.4
_END_IN = _PAGE_IN[1] - _MARGIN_IN
_TITLE_PT, _PART_PT, _TEXT_PT, _FOOT_PT = 14.0, 11.0, 7.0, 6.0
_GAP_IN, _CAPTION_GAP_IN, _PART_GAP_IN = 0.12, 0.04, 0.3


def write_pdf(path: Path, run: Run, papers: Sequence[Document]) -> Path:
    """Write the document. Returns the path."""
    dates, drawn = {"CreationDate": None, "ModDate": None}, BytesIO()
    with style.context(STYLE), PdfPages(drawn, metadata=dates) as pages:
        for figure in _pages(run, papers):
            pages.savefig(figure)
    return write_whole(path, drawn.getvalue())


def _pages(run: Run, papers: Sequence[Document]) -> Iterator[Figure]:
    flow, title = _Flow(), run.header.title
    flow.write(title, _TITLE_PT)
    flow.write(f"Made by: {' '.join(run.header.command)}", _TEXT_PT)
    flow.skip(_GAP_IN)
    headings, *rows = overview(papers)
    errors = typeset(headings, rows, NUMERIC, PAGE_IN)
    flow.add_table("Table 1", "Published numbers, and the errors of simulated ones.", errors)
    for number, paper in enumerate(papers, start=2):
        _add_part(flow, f"Table {number}", paper)
    foot_in = _PAGE_IN[1] - _FOOT_IN
    for number, page in enumerate(flow.pages, start=1):
        page.write(title, _MARGIN_IN, foot_in, _FOOT_PT)
        page.write(f"{number} / {len(flow.pages)}", _PAGE_IN[0] - _MARGIN_IN, foot_in, _FOOT_PT, align="right")
        yield page.drawn()


def _add_part(flow: _Flow, name: str, paper: Document) -> None:
    table = paper.table
    flow.begin_part(table.title, paper.draw())
    numeric = [column.numeric for column in table.columns]
    caption = " ".join([f"{table.title}.", *table.conditions])
    flow.add_table(name, caption, typeset(table.headings, table.cells, numeric, PAGE_IN))
    for note in (*(f"{note}." for note in table.notes), *table.methods):
        flow.write(note, _TEXT_PT)


@dataclass(kw_only=True, slots=True)
class _Page:
    """What is to be on a page: at most one figure, `figure_top_in` inches below the upper edge, and text and rules."""

    figure: Sheet | None = None
    figure_top_in: float = 0.0
    draws: list[Callable[[Figure], object]] = field(default_factory=list)

    def write(self, text: str, left_in: float, top_in: float, size_pt: float, align: str = "left") -> None:
        """A line of text, its upper edge `top_in` inches below that of the page."""
        x, y = left_in / _PAGE_IN[0], 1 - top_in / _PAGE_IN[1]
        look: Any = {"fontsize": size_pt, "va": "top", "ha": align, "color": INK}
        self.draws.append(lambda page: page.text(x, y, text, **look))

    def drawn(self) -> Figure:
        """The page, which is the sheet of its figure where it has one."""
        page = Figure() if self.figure is None else self.figure
        FigureCanvasAgg(page)
        _repage(page, self.figure_top_in)
        for draw in self.draws:
            draw(page)
        return page


class _Flow:
    """Pages that are filled from the top, parts following each other."""

    def __init__(self) -> None:
        self.pages = [_Page()]
        self._top_in = _MARGIN_IN

    def begin_part(self, title: str, figure: Sheet) -> None:
        """The title of a part with its figure below, on a page that has no other."""
        lines = wrapped(title, _PART_PT, PAGE_IN)
        tall_in = len(lines) * line_in(_PART_PT) + _GAP_IN + figure.get_figheight()
        self.skip(_PART_GAP_IN)
        if self.pages[-1].figure is not None or self._top_in + tall_in > _END_IN:
            self._turn()
        self.write(title, _PART_PT)
        self.skip(_GAP_IN)
        self.pages[-1].figure, self.pages[-1].figure_top_in = figure, self._top_in
        self.skip(figure.get_figheight() + _GAP_IN)

    def write(self, text: str, size_pt: float) -> None:
        """A paragraph."""
        for line in wrapped(text, size_pt, PAGE_IN):
            if self._top_in + line_in(size_pt) > _END_IN:
                self._turn()
            self.pages[-1].write(line, _MARGIN_IN, self._top_in, size_pt)
            self.skip(line_in(size_pt))

    def skip(self, inches: float) -> None:
        """Leave room free, or to what has been put there."""
        self._top_in += inches

    def add_table(self, name: str, caption: str, table: TypesetTable) -> None:
        """A table below its caption; what does not fit continues on further pages."""
        caption = f"{name}. {caption}"
        above_in = len(wrapped(caption, _TEXT_PT, PAGE_IN)) * line_in(_TEXT_PT) + _CAPTION_GAP_IN
        page_in = _END_IN - _MARGIN_IN - above_in - table.frame_in
        for rows in split(table.heights_in, page_in - (self._top_in - _MARGIN_IN), page_in):
            if not rows:
                self._turn()
                continue
            if rows.start:
                self._turn()
            self.write(f"{name}, continued." if rows.start else caption, _TEXT_PT)
            self.skip(_CAPTION_GAP_IN)
            self._draw(table, rows)
        self.skip(_GAP_IN)

    def _draw(self, table: TypesetTable, rows: range) -> None:
        top_in = self._top_in
        self.pages[-1].draws.append(lambda page: table.draw(page, rows, _MARGIN_IN, top_in))
        self.skip(table.frame_in + sum(table.heights_in[rows.start : rows.stop]))

    def _turn(self) -> None:
        self.pages.append(_Page())
        self._top_in = _MARGIN_IN


def _repage(figure: Figure, top: float) -> None:
    """Move all that a figure holds onto a page of our size, `top` inches below its upper edge, without scaling it."""
    was, left = (figure.get_figwidth(), figure.get_figheight()), _MARGIN_IN
    width, height = _PAGE_IN

    def moved(x: float, y: float) -> tuple[float, float]:
        return (x * was[0] + left) / width, 1 - (top + (1 - y) * was[1]) / height

    for axes in figure.axes:
        box = axes.get_position()
        x, y = moved(box.x0, box.y0)
        axes.set_position((x, y, box.width * was[0] / width, box.height * was[1] / height))
    for text in figure.texts:
        text.set_position(moved(*text.get_position()))
    for legend in figure.legends:
        anchor = legend.get_bbox_to_anchor().transformed(figure.transFigure.inverted())
        legend.set_bbox_to_anchor(moved(anchor.x0, anchor.y0), transform=figure.transFigure)
    figure.set_size_inches(*_PAGE_IN)
