"""One document of a run on the page: its findings in words, its figures, its table."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from markupsafe import Markup

from ktbench.report import table as tables
from ktbench.report.documents import Document
from ktbench.report.figures.draw import further_figures
from ktbench.report.figures.output import Stylesheet, embedded
from ktbench.report.figures.sheet import Key, Sheet
from ktbench.report.table import Table
from ktbench.report.web.findings import (
    FindingGroup,
    Statement,
    best_sentence,
    findings_of,
    findings_of_answers,
    findings_of_learning,
    findings_of_shares,
)
from ktbench.report.web.tooltips import TooltipIndex, cards_of, keys_of_lines
from ktbench.report.web.warnings import warnings_of

_INSIDE = re.compile(r", (?=[^\[\]]*\])")  # in the brackets of an interval, which stays on one line
_UPRIGHT = 148  # letters
_CLASSES = {"faster": "good", "higher": "good", "slower": "bad", "lower": "bad", "NOISY": "doubt"}
_PX_PER_IN = 122.0  # figures are lettered for print: 6.5 points are 11 pixels at their full size
_PAGE_IN = 9.5  # height of a printed page


@dataclass(frozen=True, kw_only=True, slots=True)
class PageFigure:
    """A figure as `<svg>`, `wide` pixels at its full size. The script finds its marks below `name`."""

    name: str
    title: str
    svg: Markup
    caption: str
    wide: int
    is_long: bool


@dataclass(kw_only=True, slots=True)
class Figures:
    """All figures of a page: their CSS, and by name of a figure and id of a mark the cards that it shows."""

    styles: Stylesheet = field(default_factory=Stylesheet)
    marks: dict[str, dict[str, list[object]]] = field(default_factory=dict)
    _count: int = 0

    def add(self, figure: Sheet, title: str, caption: str, numbers: Mapping[Key, int]) -> PageFigure:
        """Embed a figure, whose marks have cards of these numbers."""
        found = self.embed(figure, title, caption)
        self.marks[found.name] = {
            gid: [[numbers[one.key], one.note] if one.note else numbers[one.key] for one in marks]
            for gid, marks in figure.marks.items()
        }
        return found

    def embed(self, figure: Sheet, title: str, caption: str = "") -> PageFigure:
        """Embed a figure without cards."""
        name = f"figure-{self._count}"
        self._count += 1
        box = figure.plots_box()
        return PageFigure(
            name=name,
            title=title,
            svg=Markup(embedded(figure, name, self.styles)),  # matplotlib escapes text
            caption=caption,
            wide=round(box.width * _PX_PER_IN),
            is_long=box.height > _PAGE_IN,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """A line of a table with the number of its card; `looks` has a class for each cell."""

    card: int
    cells: tuple[str, ...]
    looks: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class PageGrid:
    """A grid below the table; a broad one is printed on a page of its own."""

    of: tables.Grid
    is_broad: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """A document as the template shows it. `commands` have the number of the card that they are of."""

    id: str
    title: str
    table: Table
    is_broad: bool
    origins: tuple[str, ...]
    best: Statement | None
    findings: tuple[FindingGroup, ...]
    warnings: tuple[str, ...]
    figures: tuple[PageFigure, ...]
    lines: tuple[Line, ...]
    controls: tuple[Line, ...]
    grids: tuple[PageGrid, ...]
    commands: tuple[tuple[int, str, str], ...]


def section_of(document: Document, index: TooltipIndex, figures: Figures, title: str) -> Section:
    """The section of a document, whose cards go to `index` and whose figures to `figures`."""
    first = len(index.cards)
    numbers = index.add(cards_of(document))
    table, is_table = document.table, document.kind == "table"
    drawn = [("", document.figure), *further_figures(document, document.style)]
    lines = zip(keys_of_lines(document), table.cells, strict=True)
    return Section(
        id=document.name,
        title=title,
        table=table,
        is_broad=_is_broad([table.headings, *table.cells, *table.control_cells]),
        origins=document.origins,
        best=best_sentence(document.rows) if is_table else None,
        findings=_findings(document),
        warnings=warnings_of(document.rows) if is_table else (),
        figures=tuple(figures.add(figure, name, _captioned(figure, table), numbers) for name, figure in drawn),
        lines=tuple(_line(table, numbers[key], cells) for key, cells in lines),
        controls=tuple(_controls(document, numbers)),
        grids=tuple(PageGrid(of=one, is_broad=_is_broad([one.headings, *one.lines])) for one in table.grids),
        commands=tuple(_commands(table, index, first)),
    )


def _captioned(figure: Sheet, table: Table) -> str:
    """The caption without what the section lists as conditions and methods."""
    listed = {*table.conditions, *table.methods}
    return " ".join(sentence for sentence in figure.caption if sentence not in listed)


def _commands(table: Table, index: TooltipIndex, first: int) -> Iterator[tuple[int, str, str]]:
    """Those of the cards from `first` on, each once, by the name that the table has for it."""
    names = {command: name for name, command in reversed(table.commands)}
    for n, card in enumerate(index.cards[first:], first):
        if card.command and index.holders[n] == n:
            yield n, names.get(card.command, card.name), card.command


def _findings(document: Document) -> tuple[FindingGroup, ...]:
    if document.kind == "table":
        return findings_of(document.rows)
    if document.kind == "attribution":
        return findings_of_shares(document.attributions)
    if document.kind == "learning":
        return findings_of_learning(document.learned)
    return findings_of_answers(document.answers)


def _controls(document: Document, numbers: Mapping[Key, int]) -> Iterator[Line]:
    rows = [row for row in document.rows if row.role == "control"] if document.table.control_cells else []
    for row, cells in zip(rows, document.table.control_cells, strict=True):
        yield _line(document.table, numbers[row.cell,], cells)


def _is_broad(lines: Sequence[Sequence[str]]) -> bool:
    """Whether columns, as narrow as their words allow, are more than an upright printed page has room for."""
    return sum(max(map(_longest, column)) + 1 for column in zip(*lines, strict=True)) > _UPRIGHT


def _longest(text: str) -> int:
    return max(map(len, _INSIDE.sub(",\u00a0", text).split(" ")))


def _line(table: Table, card: int, cells: tuple[str, ...]) -> Line:
    numeric = ("number" if column.numeric else "" for column in table.columns)
    looks = (f"{right} {_CLASSES.get(cell, '')}".strip() for right, cell in zip(numeric, cells, strict=True))
    return Line(card=card, cells=tuple(_INSIDE.sub(",\u00a0", cell) for cell in cells), looks=tuple(looks))
