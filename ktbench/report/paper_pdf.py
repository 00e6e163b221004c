"""All published numbers of a run as one document to print: of each part its figure, then its table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from matplotlib import style
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_pdf import PdfPages
from matplotlib.figure import Figure

from ktbench.files import write_whole
from ktbench.report.documents import NUMERIC, Document, overview
from ktbench.report.figures.sheet import PAGE_IN, STYLE
from ktbench.report.figures.text_metrics import wrapped
from ktbench.report.markdown import grid, table_grid
from ktbench.results import Run

_PAGE_IN = (8.27, 11.69)  # A4
_MARGIN_IN = 0.63
_TITLE_PT, _TEXT_PT, _TABLE_PT = 12.0, 7.0, 5.2
_LEADING = 1.35
_GAP_IN = 0.15
_LETTER = 0.602  # width of a letter of DejaVu Sans Mono over its size


def write_pdf(path: Path, run: Run, papers: Sequence[Document]) -> Path:
    """Write the document: an overview, then of each part as many pages as its table takes. Returns the path."""
    dates, drawn = {"CreationDate": None, "ModDate": None}, BytesIO()
    with style.context(STYLE), PdfPages(drawn, metadata=dates) as pages:
        for figure in _sheets(run, papers):
            pages.savefig(figure)
    return write_whole(path, drawn.getvalue())


def _sheets(run: Run, papers: Sequence[Document]) -> Iterator[Figure]:
    command = f"Made by: {' '.join(run.header.command)}"
    yield from _Sheets(run.header.title).with_text([command]).with_table(grid([*overview(papers)], NUMERIC)).pages
    for paper in papers:
        table = paper.table
        sheets = _Sheets(table.title, paper.draw()).with_text([*table.conditions, *table.notes])
        yield from sheets.with_table(table_grid(table, table.cells)).pages


class _Sheets:
    """Pages of one part, filled from the top; longer tables continue on further pages."""

    def __init__(self, title: str, figure: Figure | None = None) -> None:
        self._title = title
        self.pages: list[Figure] = []
        self._top = 0.0
        self._begin(figure)

    def _begin(self, figure: Figure | None = None) -> None:
        page = Figure(figsize=_PAGE_IN) if figure is None else figure
        FigureCanvasAgg(page)
        self.pages.append(page)
        self._top = _MARGIN_IN + _line_in(_TITLE_PT) + _GAP_IN
        if figure is not None:
            tall = figure.get_figheight()
            _repage(page, self._top)
            self._top += tall + _GAP_IN
        self._write(self._title, _MARGIN_IN, _TITLE_PT, weight="bold")

    def with_text(self, sentences: Sequence[str]) -> _Sheets:
        """Sentences, each a paragraph."""
        for sentence in sentences:
            for line in wrapped(sentence, _TEXT_PT, PAGE_IN):
                self._add(line, _TEXT_PT)
        self._top += _GAP_IN
        return self

    def with_table(self, lines: Sequence[str]) -> _Sheets:
        """Lines of equally wide letters, as large as the page has room for."""
        widest = max(map(len, lines))
        size = min(_TABLE_PT * 1.4, 72 * PAGE_IN / (_LETTER * widest))
        for line in lines:
            self._add(line, size, family="DejaVu Sans Mono")
        return self

    def _add(self, line: str, size_pt: float, **look: str) -> None:
        if self._top + _line_in(size_pt) > _PAGE_IN[1] - _MARGIN_IN:
            self._begin()
        self._write(line, self._top, size_pt, **look)
        self._top += _line_in(size_pt)

    def _write(self, text: str, top: float, size_pt: float, **look: Any) -> None:
        width, height = _PAGE_IN
        self.pages[-1].text(_MARGIN_IN / width, 1 - top / height, text, fontsize=size_pt, va="top", **look)


def _line_in(size_pt: float) -> float:
    return size_pt * _LEADING / 72


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
