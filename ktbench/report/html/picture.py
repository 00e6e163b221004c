"""What a figure of the page is made of: panels beside each other below a legend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import TypeVar

from ktbench.report.html.plot import Plot

T = TypeVar("T")

_PAGE, _AROUND, _ABREAST = 820.0, 75.0, 2  # of print, in pixels: a page, titles of a panel; and panels side by side
LOOKS = 10  # shades of arms, the first as in the printed figures; then they begin again


@dataclass(frozen=True, kw_only=True, slots=True)
class Panel:
    """A plot with its title and what its axes are."""

    plot: Plot
    title: str = ""
    x_name: str = ""
    y_name: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Picture:
    """A figure: `legend` has a look and a name for each arm; `wide` panels take a whole line, `roomy` ones half."""

    title: str
    caption: str
    panels: tuple[Panel, ...]
    legend: tuple[tuple[str, str], ...] = ()
    wide: bool = False
    roomy: bool = False

    @property
    def is_long(self) -> bool:
        """Whether it is taller than a printed page, so that it must break between panels."""
        abreast = 1 if self.wide else _ABREAST
        rows = [self.panels[n : n + abreast] for n in range(0, len(self.panels), abreast)]
        return sum(max(panel.plot.height for panel in row) + _AROUND for row in rows) > _PAGE


def in_pages(items: Sequence[T], tall: Callable[[T], float]) -> list[Sequence[T]]:
    """Items of a plot in as few plots of about as many as fit a printed page each."""
    pages = max(1, ceil(sum(map(tall, items)) / _PAGE))
    size = ceil(len(items) / pages) or 1
    return [items[n : n + size] for n in range(0, len(items), size)]


def looks_of(names: Sequence[str]) -> dict[str, str]:
    """A look for each name; the first is kept for base, so that other arms look alike with and without it."""
    base = next((name for name in names if name.startswith("base")), None)
    others = [name for name in dict.fromkeys(names) if name != base]
    return {name: f"s{0 if name == base else others.index(name) % (LOOKS - 1) + 1}" for name in names}
