"""The cards of a document: a card for each row, and finer ones for what a figure shows of parts of a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ktbench.report.documents import Document
from ktbench.report.html.deck import Card, Deck
from ktbench.report.html.facts import cards_of_lines, finer_cards
from ktbench.report.speed_table import columns
from ktbench.report.text import DASH
from ktbench.results.row import Row, groups_of, place
from ktbench.results.settings import varying


@dataclass(frozen=True, kw_only=True, slots=True)
class Dealt:
    """The cards of a document: one for each line of its table, one for each cell by its key.

    `finer` are those of a cell's subjects by (cell, kind, subject), and those of pairs by (group, one, other).
    """

    lines: tuple[int, ...]
    cells: Mapping[str, int]
    finer: Mapping[tuple[str, ...], int] = field(default_factory=dict)


def deal(document: Document, deck: Deck) -> Dealt:
    """Add the cards of a document to those of the page."""
    if document.kind == "table":
        numbers = deck.add(_cards_of(document.rows))
        cells = {row.cell: number for row, number in zip(document.rows, numbers, strict=True)}
        return Dealt(lines=tuple(cells[row.cell] for row in document.rows if row.role == "arm"), cells=cells)
    lines = deck.add(cards_of_lines(document))
    finer = finer_cards(document)
    return Dealt(
        lines=tuple(lines),
        cells={one.row.cell: number for one, number in zip(document.answers, lines, strict=False)},
        finer=dict(zip(finer, deck.add(list(finer.values())), strict=True)),
    )


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
