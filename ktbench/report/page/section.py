"""One document of a run on the page: what it says in words, its pictures, its table."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ktbench.report.accuracy.table import Below, grids_below
from ktbench.report.documents import Document
from ktbench.report.html.answered import answered_pictures
from ktbench.report.html.bars import bars_picture
from ktbench.report.html.curves import KINDS, curves_picture
from ktbench.report.html.picture import Picture
from ktbench.report.html.published import published_pictures
from ktbench.report.html.roofline import roofline_picture
from ktbench.report.html.samples import samples_picture
from ktbench.report.html.shares import shares_pictures
from ktbench.report.page.findings import (
    Finding,
    Said,
    best_sentence,
    findings_of,
    findings_of_answers,
    findings_of_shares,
)
from ktbench.report.page.tooltips import Dealt, Deck, deal
from ktbench.report.page.warnings import doubts_of
from ktbench.report.tables import Table

_INSIDE = re.compile(r", (?=[^\[\]]*\])")  # in the brackets of an interval, which stays on one line
_UPRIGHT = 148  # letters
_LOOKS = {"faster": "good", "higher": "good", "slower": "bad", "lower": "bad", "NOISY": "doubt"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """A line of a table with the number of its card; `looks` has a class for each cell."""

    card: int
    cells: tuple[str, ...]
    looks: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Grid:
    """A grid below the table; a broad one is printed on a page of its own."""

    of: Below
    is_broad: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """A document as the template shows it. `commands` have the number of the card that they are of."""

    id: str
    title: str
    table: Table
    is_broad: bool
    origins: tuple[str, ...]
    best: Said | None
    findings: tuple[Finding, ...]
    doubts: tuple[str, ...]
    pictures: tuple[Picture, ...]
    lines: tuple[Line, ...]
    controls: tuple[Line, ...]
    grids: tuple[Grid, ...]
    commands: tuple[tuple[int, str, str], ...]


def section_of(document: Document, deck: Deck, title: str) -> Section:
    """The section of a document, whose cards go to `deck`."""
    first = deck.begin()
    dealt = deal(document, deck)
    table, is_table = document.table, document.kind == "table"
    return Section(
        id=document.name,
        title=title,
        table=table,
        is_broad=_is_broad(_texts(table)),
        origins=document.origins,
        best=best_sentence(document.rows) if is_table else None,
        findings=_findings(document),
        doubts=doubts_of(document.rows) if is_table else (),
        pictures=tuple(_pictures(document, dealt)),
        lines=tuple(_line(table, card, cells) for card, cells in zip(dealt.lines, table.cells, strict=True)),
        controls=tuple(_controls(document, dealt)),
        grids=tuple(_grids(document)),
        commands=tuple(_commands(table, deck, first)),
    )


def _commands(table: Table, deck: Deck, first: int) -> Iterator[tuple[int, str, str]]:
    """Those of the cards from `first` on, each once, by the name that the table has for it."""
    names = {command: name for name, command in reversed(table.commands)}
    for n, card in enumerate(deck.cards[first:], first):
        if card.command and deck.holders[n] == n:
            yield n, names.get(card.command, card.name), card.command


def _findings(document: Document) -> tuple[Finding, ...]:
    if document.kind == "table":
        return findings_of(document.rows)
    if document.kind == "attribution":
        return findings_of_shares(document.attributions)
    return findings_of_answers(document.answers)


def _pictures(document: Document, dealt: Dealt) -> Iterator[Picture]:
    if document.kind == "accuracy":
        yield from answered_pictures(document, dealt)
    elif document.kind == "attribution":
        yield from shares_pictures(document.attributions, dealt)
    elif document.kind == "paper":
        yield from published_pictures(document, dealt)
    else:
        yield from _of_speeds(document, dealt)


def _of_speeds(document: Document, dealt: Dealt) -> Iterator[Picture]:
    rows, figure, cards = document.rows, document.table.figure, dealt.cells
    yield curves_picture(rows, figure, cards) if figure in KINDS else bars_picture(rows, cards)
    yield from filter(None, (roofline_picture(rows, cards), samples_picture(rows, cards)))


def _controls(document: Document, dealt: Dealt) -> Iterator[Line]:
    rows = [row for row in document.rows if row.role == "control"] if document.table.control_cells else []
    for row, cells in zip(rows, document.table.control_cells, strict=True):
        yield _line(document.table, dealt.cells[row.cell], cells)


def _grids(document: Document) -> Iterator[Grid]:
    for grid in grids_below(document.run, document.answers) if document.kind == "accuracy" else ():
        yield Grid(of=grid, is_broad=_is_broad([grid.headings, *grid.lines]))


def _texts(table: Table) -> list[Sequence[str]]:
    return [[column.heading for column in table.columns], *table.cells, *table.control_cells]


def _is_broad(lines: Sequence[Sequence[str]]) -> bool:
    """Whether columns, as narrow as their words allow, are more than an upright printed page has room for."""
    return sum(max(map(_longest, column)) + 1 for column in zip(*lines, strict=True)) > _UPRIGHT


def _longest(text: str) -> int:
    return max(map(len, _INSIDE.sub(",\u00a0", text).split(" ")))


def _line(table: Table, card: int, cells: tuple[str, ...]) -> Line:
    numeric = ("number" if column.numeric else "" for column in table.columns)
    looks = (f"{right} {_LOOKS.get(cell, '')}".strip() for right, cell in zip(numeric, cells, strict=True))
    return Line(card=card, cells=tuple(_INSIDE.sub(",\u00a0", cell) for cell in cells), looks=tuple(looks))
