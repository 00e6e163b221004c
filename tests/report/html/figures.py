"""What stands in a picture of the page: its letters and shapes, read from the SVG that a browser gets."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from html import unescape
from math import log10

import pytest
from ktbench.report.html.picture import Panel, Picture

from ktbench.report.documents import Document, documents_of
from ktbench.report.web.section import section_of
from ktbench.report.web.tooltips import Deck
from ktbench.results import Run


def pictures_of(run: Run, kind: str) -> tuple[Document, Deck, dict[str, Picture]]:
    """The document of a kind, the cards that it deals, and its pictures by title."""
    document = next(one for one in documents_of(run) if one.kind == kind)
    deck = Deck()
    section = section_of(document, deck, document.table.title)
    return document, deck, {picture.title: picture for picture in section.pictures}


def words(panel: Panel, look: str) -> list[str]:
    """Texts of a look, in the order in which they were written."""
    found = re.findall(r'<text class="([^"]*)"[^>]*>(.*?)</text>', str(panel.plot.svg()))
    return [unescape(text) for mine, text in found if look in mine.split()]


def boxes(panel: Panel, look: str) -> list[tuple[float, float]]:
    """Left and right ends of boxes of a look."""
    found = re.findall(r'<rect class="([^"]*)" x="([^"]*)" y="[^"]*" width="([^"]*)"', str(panel.plot.svg()))
    return [(float(x), float(x) + float(wide)) for mine, x, wide in found if look in mine.split()]


def points(panel: Panel, look: str) -> list[tuple[float, float]]:
    """Points of all lines and dots of exactly this look."""
    paths = re.findall(rf'<path class="{look}" d="([^"]*)"', str(panel.plot.svg()))
    return [(float(x), float(y)) for path in paths for x, y in re.findall(r"[ML]([-\d.]+) ([-\d.]+)", path)]


def axes_of(panel: Panel, *, log: bool = False) -> tuple[Callable[[float], float], Callable[[float], float]]:
    """Where a reader finds values on the x axis and on the y axis: between the outermost ticks that have names."""
    svg = str(panel.plot.svg())
    below = re.findall(r'<text class="tick" x="([^"]*)%" y="[^"]*" text-anchor="middle">([^<]*)<', svg)
    left = re.findall(r'<text class="tick" x="-6" y="([^"]*)" text-anchor="end">([^<]*)<', svg)
    x = {_value(name): 10 * float(at) for at, name in below}
    y = {_value(name): float(at) - 4 for at, name in left}  # letters stand 4 pixels below their middle
    return _between(x, log), _between(y, log)


def _value(name: str) -> float:
    return float(name.replace(",", ""))


def _between(ticks: dict[float, float], log: bool) -> Callable[[float], float]:
    """Through the least and the greatest tick, or always 0 where there are none."""
    if not ticks:
        return lambda _: 0.0
    low, high = min(ticks), max(ticks)
    share = (lambda v: log10(v / low) / log10(high / low)) if log else (lambda v: (v - low) / (high - low))

    def place(value: float) -> float:
        return ticks[low] + share(value) * (ticks[high] - ticks[low])

    assert [place(tick) for tick in ticks] == pytest.approx([*ticks.values()], abs=1.0)
    return place


def facts_at(panel: Panel, deck: Deck, numbers: Sequence[int] | None = None) -> list[tuple[str, dict[str, str], str]]:
    """Name, facts and command that a pointer finds at each spot."""
    spots = [panel.plot.spots[n] for n in numbers] if numbers else panel.plot.spots
    return [(deck.cards[s.card].name, dict(deck.cards[s.card].facts), deck.cards[s.card].command) for s in spots]
