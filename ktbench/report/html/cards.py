"""A card for each row: what a pointer over a figure, a line of a table and its command have in common."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ktbench.report.columns import columns
from ktbench.report.documents import Document
from ktbench.report.row import Row, groups_of
from ktbench.report.settings import varying
from ktbench.report.tables import Table, place
from ktbench.report.text import DASH


@dataclass(frozen=True, kw_only=True, slots=True)
class Card:
    """A row by its name, with facts to show and the command that runs it again; that may be empty."""

    name: str
    facts: tuple[tuple[str, str], ...]
    command: str


@dataclass(kw_only=True, slots=True)
class Deck:
    """The cards of a page. Numbers of cards hold for the page."""

    cards: list[Card] = field(default_factory=list)

    def add(self, cards: Sequence[Card]) -> range:
        """Add cards; returns their numbers."""
        self.cards += cards
        return range(len(self.cards) - len(cards), len(self.cards))


@dataclass(frozen=True, kw_only=True, slots=True)
class Dealt:
    """The cards of a document: one for each line of its table, and one for each cell by its key."""

    lines: tuple[int, ...]
    cells: Mapping[str, int]


def deal(document: Document, deck: Deck) -> Dealt:
    """Add the cards of a document to those of the page."""
    if document.kind == "table":
        numbers = deck.add(_cards_of(document.rows))
        cells = {row.cell: number for row, number in zip(document.rows, numbers, strict=True)}
        return Dealt(lines=tuple(cells[row.cell] for row in document.rows if row.role == "arm"), cells=cells)
    numbers = deck.add(list(_cards_of_table(document.table, _commands(document))))
    keys = [one.row.cell for one in document.answers] if document.kind == "accuracy" else []
    return Dealt(lines=tuple(numbers), cells=dict(zip(keys, numbers, strict=False)))


def _cards_of(rows: Sequence[Row]) -> list[Card]:
    """All that a table could say of each row, what is the same for all rows included."""
    settings = varying([group[0].settings for group in groups_of(rows)])
    written = [column for column in columns(settings, rows) if column.heading not in ("arm", *settings)]
    cards = []
    for row in rows:
        facts = [(column.heading, column.write(row)) for column in written]
        facts += [("why", row.why)] if row.why else []
        shown = tuple((name, text) for name, text in facts if text != DASH)
        cards.append(Card(name=place(row, settings), facts=shown, command=row.command))
    return cards


def _cards_of_table(table: Table, commands: Sequence[str]) -> Iterator[Card]:
    """What stands in each line; its first column names it."""
    headings = [column.heading for column in table.columns]
    for cells, command in zip(table.cells, commands, strict=True):
        facts = tuple((name, text) for name, text in zip(headings[1:], cells[1:], strict=True) if text != DASH)
        yield Card(name=cells[0], facts=facts, command=command)


def _commands(document: Document) -> list[str]:
    """The command of each line of a table; empty ones where its commands are not those of its lines."""
    table = document.table
    if document.kind == "paper":
        return [line.command for line in document.lines]
    named = len(table.commands) == len(table.cells)
    if named and all(name.startswith(cells[0]) for (name, _), cells in zip(table.commands, table.cells, strict=True)):
        return [command for _, command in table.commands]
    return [""] * len(table.cells)
