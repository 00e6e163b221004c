"""What stands in a picture of the page: its letters and shapes, read from the SVG that a browser gets."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import unescape

from ktbench.report.documents import Document, documents_of
from ktbench.report.html.deck import Deck
from ktbench.report.html.picture import Panel, Picture
from ktbench.report.html.section import section_of
from ktbench.store import Run


def pictures_of(run: Run, kind: str) -> tuple[Document, Deck, dict[str, Picture]]:
    """The document of a kind, the cards that it deals, and its pictures by title."""
    document = next(one for one in documents_of(run) if one.kind == kind)
    deck = Deck()
    section = section_of(document, deck, alone=True)
    return document, deck, {picture.title: picture for picture in section.pictures}


def words(panel: Panel, look: str) -> list[str]:
    """Texts of a look, in the order in which they were written."""
    found = re.findall(r'<text class="([^"]*)"[^>]*>(.*?)</text>', str(panel.plot.svg()))
    return [unescape(text) for mine, text in found if look in mine.split()]


def boxes(panel: Panel, look: str) -> list[tuple[float, float]]:
    """Left and right ends of boxes of a look."""
    found = re.findall(r'<rect class="([^"]*)" x="([^"]*)" y="[^"]*" width="([^"]*)"', str(panel.plot.svg()))
    return [(float(x), float(x) + float(wide)) for mine, x, wide in found if look in mine.split()]


def facts_at(panel: Panel, deck: Deck, numbers: Sequence[int] | None = None) -> list[tuple[str, dict[str, str], str]]:
    """Name, facts and command that a pointer finds at each spot."""
    spots = [panel.plot.spots[n] for n in numbers] if numbers else panel.plot.spots
    return [(deck.cards[s.card].name, dict(deck.cards[s.card].facts), deck.cards[s.card].command) for s in spots]
