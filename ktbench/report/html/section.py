"""One document of a run on the page: what it says in words, its pictures, its table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ktbench.report.documents import Document
from ktbench.report.html.answers import answers_picture
from ktbench.report.html.bars import bars_picture
from ktbench.report.html.cards import Dealt, Deck, deal
from ktbench.report.html.curves import KINDS, curves_picture
from ktbench.report.html.doubts import doubts_of
from ktbench.report.html.picture import Picture
from ktbench.report.html.roofline import roofline_picture
from ktbench.report.html.samples import samples_picture
from ktbench.report.html.scores import findings_of_answers
from ktbench.report.html.words import Finding, Said, best_sentence, findings_of
from ktbench.report.tables import Table

_BELOW = {"accuracy": "answers", "paper": "beside published numbers", "table": "speed"}
_LOOKS = {"faster": "good", "slower": "bad", "NOISY": "doubt"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """A line of a table with the number of its card; `looks` has a class for each cell."""

    card: int
    cells: tuple[str, ...]
    looks: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """A document as the template shows it. `commands` have the number of the card that they are of."""

    id: str
    title: str
    table: Table
    origins: tuple[str, ...]
    best: Said | None
    findings: tuple[Finding, ...]
    doubts: tuple[str, ...]
    pictures: tuple[Picture, ...]
    lines: tuple[Line, ...]
    controls: tuple[Line, ...]
    commands: tuple[tuple[int, str, str], ...]


def section_of(document: Document, deck: Deck, *, alone: bool) -> Section:
    """The section of a document, whose cards go to `deck`; `alone`: its part has no other."""
    first = deck.begin()
    dealt = deal(document, deck)
    table, is_table = document.table, document.kind == "table"
    named = "" if alone else f": {_BELOW.get(document.kind, document.kind)}"
    findings = findings_of(document.rows) if is_table else findings_of_answers(document.answers)
    return Section(
        id=document.name,
        title=f"{table.title}{named}",
        table=table,
        origins=tuple(_origins(document)),
        best=best_sentence(document.rows) if is_table else None,
        findings=findings,
        doubts=doubts_of(document.rows) if is_table else (),
        pictures=tuple(_pictures(document, dealt.cells)),
        lines=tuple(_line(table, card, cells) for card, cells in zip(dealt.lines, table.cells, strict=True)),
        controls=tuple(_controls(document, dealt)),
        commands=tuple(_commands(table, deck, first)),
    )


def _commands(table: Table, deck: Deck, first: int) -> Iterator[tuple[int, str, str]]:
    """Those of the cards from `first` on, each once, by the name that the table has for it."""
    names = {command: name for name, command in reversed(table.commands)}
    for n, card in enumerate(deck.cards[first:], first):
        if card.command and deck.holders[n] == n:
            yield n, names.get(card.command, card.name), card.command


def _origins(document: Document) -> Iterator[str]:
    """Where the numbers of a document are from."""
    found = {row.provenance for row in document.rows} | {answer.provenance for answer in document.answers}
    published = document.kind == "paper" or any(line.published is not None for line in document.lines)
    yield from (origin for origin in ("measured", "simulated") if origin in found)
    if published:
        yield "published"


def _pictures(document: Document, cards: Mapping[str, int]) -> Iterator[Picture]:
    table, rows = document.table, document.rows
    found: list[Picture | None] = []
    if document.kind == "accuracy":
        found = [answers_picture(document.answers, cards, table.figure_caption)]
    elif document.kind == "table":
        drawn = table.figure in KINDS
        main = curves_picture(rows, table.figure, cards) if drawn else bars_picture(rows, cards)
        found = [main, roofline_picture(rows, cards), samples_picture(rows, cards)]
    yield from (picture for picture in found if picture is not None)


def _controls(document: Document, dealt: Dealt) -> Iterator[Line]:
    rows = [row for row in document.rows if row.role == "control"] if document.table.control_cells else []
    for row, cells in zip(rows, document.table.control_cells, strict=True):
        yield _line(document.table, dealt.cells[row.cell], cells)


def _line(table: Table, card: int, cells: tuple[str, ...]) -> Line:
    numeric = ("number" if column.numeric else "" for column in table.columns)
    looks = (f"{right} {_LOOKS.get(cell, '')}".strip() for right, cell in zip(numeric, cells, strict=True))
    return Line(card=card, cells=cells, looks=tuple(looks))
