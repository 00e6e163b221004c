"""Cards: what a pointer over a figure, a line of a table and its command have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True, slots=True)
class Card:
    """A row by its name, with facts to show and the command that runs it again; that may be empty."""

    name: str
    facts: tuple[tuple[str, str], ...]
    command: str


@dataclass(kw_only=True, slots=True)
class Deck:
    """The cards of a page. Numbers of cards hold for the page.

    `holders` has for each card the number of the first card of its document with the same command.
    """

    cards: list[Card] = field(default_factory=list)
    holders: list[int] = field(default_factory=list)
    _first: dict[str, int] = field(default_factory=dict)

    def begin(self) -> int:
        """Begin a document; returns the number that its first card will have."""
        self._first = {}
        return len(self.cards)

    def add(self, cards: Sequence[Card]) -> range:
        """Add cards; returns their numbers."""
        numbers = range(len(self.cards), len(self.cards) + len(cards))
        self.cards += cards
        self.holders += [self._first.setdefault(card.command, n) for n, card in zip(numbers, cards, strict=True)]
        return numbers
