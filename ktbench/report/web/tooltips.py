"""Tooltips: a card for each row of a document, and finer ones for what its figures show of parts of a row."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ktbench.report.accuracy_table import SCORES, accuracy_columns, settings_shown
from ktbench.report.attribution_table import TOTAL, AttributionLine, context_text, group_name, lines_of
from ktbench.report.attribution_table import settings_shown as settings_of_groups
from ktbench.report.documents import Document
from ktbench.report.figures.sheet import Key
from ktbench.report.learning_table import learned_name
from ktbench.report.learning_table import settings_shown as settings_of_arms
from ktbench.report.speed_table import columns
from ktbench.report.table import Column, Table, columns_for
from ktbench.results.accuracy import AccuracyRow, Result
from ktbench.results.attribution import Attribution, FeaturePair
from ktbench.results.intervals import Interval, is_exact
from ktbench.results.paper import PaperLine
from ktbench.results.quantities.text import DASH, ratio
from ktbench.results.row import Row, groups_of, place
from ktbench.results.settings import model_title, varying


@dataclass(frozen=True, kw_only=True, slots=True)
class Card:
    """A row by its name, with facts to show and the command that runs it again; that may be empty."""

    name: str
    facts: tuple[tuple[str, str], ...]
    command: str


@dataclass(kw_only=True, slots=True)
class TooltipIndex:
    """The cards of a page by number; `holders` has for each the first card of its document with the same command."""

    cards: list[Card] = field(default_factory=list)
    holders: list[int] = field(default_factory=list)

    def add(self, cards: Mapping[Key, Card]) -> dict[Key, int]:
        """Add the cards of a document by the keys of its marks; returns their numbers by these keys."""
        numbers = range(len(self.cards), len(self.cards) + len(cards))
        first: dict[str, int] = {}
        self.cards += cards.values()
        self.holders += [first.setdefault(card.command, n) for n, card in zip(numbers, cards.values(), strict=True)]
        return dict(zip(cards, numbers, strict=True))


Facts = Iterator[tuple[str, str]]


def keys_of_lines(document: Document) -> list[Key]:
    """The key of each line of the table of a document."""
    if document.kind == "table":
        return [(row.cell,) for row in document.rows if row.role == "arm"]
    if document.kind == "accuracy":
        return [(row.row.cell,) for row in document.answers]
    if document.kind == "learning":
        names = settings_of_arms(document.learned)
        return [("learned", learned_name(one, names)) for one in document.learned]
    if document.kind == "paper":
        return [(line.id, line.cell) for line in document.lines]
    return [
        (str(n), name)
        for n, one in enumerate(document.attributions)
        for name in (*(share.feature for share in one.shares), TOTAL)
    ]


def cards_of(document: Document) -> dict[Key, Card]:
    """Cards of the lines of a document, and of what its figures show of parts of a line, by key."""
    if document.kind == "table":
        settings = varying([group[0].settings for group in groups_of(document.rows)])
        every = columns(settings, document.rows, document.table.figure)  # what is the same for all rows included
        return {(row.cell,): _card_of_row(row, row, every, settings) for row in document.rows}
    return dict(zip(keys_of_lines(document), _cards_of_lines(document), strict=True)) | _finer_cards(document)


def _card_of_row(row: Row | AccuracyRow, cell: Row, every: Sequence[Column[Any]], settings: Sequence[str]) -> Card:
    """All columns other than those that name the row."""
    facts = [(column.heading, column.write(row)) for column in every if column.heading not in ("arm", *settings)]
    return _card(place(cell, settings), [*facts, ("why", row.why)], row.command)


def _cards_of_lines(document: Document) -> list[Card]:
    """A card for each line of a table that is not one of speeds."""
    table = document.table
    if document.kind == "accuracy":
        settings = settings_shown(document.answers)
        every = accuracy_columns(settings, document.answers, table.figure)
        return [_card_of_row(row, row.row, every, settings) for row in document.answers]
    if document.kind == "attribution":
        lines = zip(lines_of(document.attributions), _written(table), strict=True)
        return [_card_of_share(line, cells, document) for line, cells in lines]
    if document.kind == "learning":
        arms = zip(document.learned, _written(table), strict=True)  # over their seeds; the command is that of the first
        return [_card(shown, [*facts, ("why", one.why)], one.rows[0].command) for one, ((_, shown), *facts) in arms]
    numbers = zip(document.lines, _written(table), strict=True)
    return [_card_of_number(line, cells) for line, cells in numbers]


def _finer_cards(document: Document) -> dict[Key, Card]:
    """Cards of the subjects of cells, of the pairs of groups, and of numbers beside answers, by what they are of."""
    found: dict[Key, Card] = {}
    settings = settings_shown(document.answers) if document.answers else ()
    for row in document.answers:
        for result in (one for one in row.results if one.kind != "average"):
            name = f"{place(row.row, settings)}: {result.subject}"
            found[row.row.cell, result.kind, result.subject] = _card(name, _of_result(row, result), row.command)
    groups = settings_of_groups(document.attributions)
    for n, one in enumerate(document.attributions):
        for pair in one.pairs:
            found[str(n), pair.one, pair.other] = _card_of_pair(one, pair, groups, document)
    for line in document.lines if document.kind == "accuracy" else ():
        found[line.id, line.cell] = _card_of_number(line, _number_facts(line))
    return found


def _written(table: Table) -> list[list[tuple[str, str]]]:
    """What stands in each line, by heading."""
    headings = [column.heading for column in table.columns]
    return [list(zip(headings, cells, strict=True)) for cells in table.cells]


def _card(name: str, facts: Iterable[tuple[str, str]], command: str) -> Card:
    return Card(name=name, facts=tuple((key, text) for key, text in facts if text not in ("", DASH)), command=command)


def _of_result(row: AccuracyRow, result: Result) -> Facts:
    yield from ((column.heading, column.write(result)) for column in columns_for(SCORES, [result]))
    yield from ((f"no {name}", why) for name, why in result.missing.items() if not row.is_baseline or name == "score")
    yield "evidence (counter)", row.evidence
    yield "provenance", row.provenance or DASH


def _card_of_share(line: AttributionLine, cells: Sequence[tuple[str, str]], document: Document) -> Card:
    (_, feature), *facts = cells
    missing = line.share.missing.items() if line.share else ()
    lacking = [(f"no {name}", why) for name, why in missing]
    return _card(feature, [*facts, *lacking, *_of_attribution(line.of, line.counted, document)], _command(document))


def _card_of_pair(one: Attribution, pair: FeaturePair, settings: Sequence[str], document: Document) -> Card:
    factor = DASH if pair.factor is None else ratio(pair.factor)
    facts = [
        ("together over the product of each (×)", factor),
        ("beside", context_text(one, pair)),
        ("at", group_name(one, settings)),
        ("why", pair.why),
        *_of_attribution(one, pair.factor, document),
    ]
    return _card(f"{pair.one} with {pair.other}", facts, _command(document))


def _of_attribution(one: Attribution, value: Interval | None, document: Document) -> Facts:
    """What stands behind a value of a group: its rounds, and what counters saw of all features together."""
    arms = (row for row in document.rows if row.role == "arm" and row.label == one.whole)
    whole = next((row for row in arms if row.settings == one.settings), None)
    yield f"{document.run.header.measure.unit}s", DASH if value is None or is_exact(value) else str(value.n)
    yield f"evidence of {one.whole} (counter/step)", (whole.evidence if whole else None) or DASH
    yield "provenance", "simulated" if one.simulated else "measured"


def _command(document: Document) -> str:
    ((_, command),) = document.table.commands
    return command


def _card_of_number(line: PaperLine, cells: Sequence[tuple[str, str]]) -> Card:
    name = line.arm or line.what or line.id
    facts = [(key, text) for key, text in cells if text != name]
    lacking = [(f"not {key}", why) for key, why in line.missing.items()]
    return _card(name, [*facts, *lacking, ("published in", line.source)], line.command)


def _number_facts(line: PaperLine) -> list[tuple[str, str]]:
    """What a number says where it is no line of a table."""
    value = DASH if line.published is None else f"{line.published:g}"
    return [("of", line.what), ("model", model_title(line.model)), (f"published ({line.metric})", value)]
