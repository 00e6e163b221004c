"""Plots as SVG that stretch with the page while lines and letters keep their size; and where a pointer finds what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Literal

from markupsafe import Markup

from ktbench.report.html.scale import Scale, tick_name

WIDE = 1000.0  # units of the canvas from its left edge to its right edge; heights are CSS pixels
_FOOT = 20.0  # room for the names of ticks
_BOLD_PX, _PLAIN_PX, _ROOM_PX = 7.4, 6.6, 300.0  # of a letter of names and of numbers, and of the narrowest panel
_MOST_NAMES = 9  # below a canvas, so that they do not touch
_LETTERS = 46  # of a reason, so that it fits a phone

XY = tuple[float, float]
Anchor = Literal["start", "middle", "end"]
Find = Literal["points", "rows", "cells"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Spot:
    """What a pointer finds at a place of the canvas: the number of a card, and numbers of the turn shown there."""

    x: float
    y: float
    card: int
    turn: tuple[float | None, ...] = ()

    @property
    def plain(self) -> list[float | int | None]:
        """As the page's script reads it."""
        return [round(self.x, 1), round(self.y, 1), self.card, *self.turn]


@dataclass(kw_only=True, slots=True)
class Plot:
    """A canvas `height` pixels high. A pointer finds the nearest point, or the row or the cell that it is in."""

    height: float
    label: str
    name: str = ""
    find: Find = "points"
    spots: list[Spot] = field(default_factory=list)
    _shapes: list[Markup] = field(default_factory=list)
    _letters: list[Markup] = field(default_factory=list)

    def box(self, look: str, corner: XY, wide: float, high: float) -> None:
        """A rectangle, `corner` at its upper left."""
        x, y = corner
        attributes = f'x="{_n(x)}" y="{_n(y)}" width="{_n(max(wide, 0.0))}" height="{_n(high)}"'
        self._shapes.append(Markup('<rect class="{}" {}/>').format(look, Markup(attributes)))

    def lines(self, look: str, lines: Sequence[Sequence[XY]]) -> None:
        """Lines through points, all of one look."""
        self._path(look, "".join(_through(points) for points in lines))

    def area(self, look: str, points: Sequence[XY]) -> None:
        """A filled shape around points."""
        self._path(look, f"{_through(points)}Z")

    def dots(self, look: str, points: Sequence[XY]) -> None:
        """Points as dots: lines without length, whose round ends stay round however the canvas stretches."""
        self._path(look, "".join(f"M{_n(x)} {_n(y)}h0" for x, y in points))

    def text(self, look: str, at: XY, words: str, anchor: Anchor = "start", aside: float = 0.0) -> None:
        """Words on a line, their foot at y, moved `aside` by so many pixels."""
        x, y = at
        moved = f' dx="{_n(aside)}"' if aside else ""
        place = Markup(f'x="{_n(x / WIDE * 100)}%" y="{_n(y)}"{moved} text-anchor="{anchor}"')
        self._letters.append(Markup('<text class="{}" {}>{}</text>').format(look, place, words))

    def left(self, y: float, words: str) -> None:
        """The name of a tick left of the canvas."""
        place = Markup(f'x="-6" y="{_n(y + 4)}" text-anchor="end"')
        self._letters.append(Markup('<text class="tick" {}>{}</text>').format(place, words))

    def below(self, x: float, words: str) -> None:
        """The name of a tick below the canvas."""
        self.text("tick", (x, self.height + 15), words, "middle")

    def levels(self, y: Scale, *, count: int = 5, zero: str = "grid") -> None:
        """Level lines at about `count` round values, named on the left; the one at 0 has the look `zero`."""
        for tick in y.ticks(count):
            self.lines("grid" if tick else zero, [[(0.0, y(tick)), (WIDE, y(tick))]])
            self.left(y(tick), tick_name(tick))

    def names_below(self, x: Scale, values: Sequence[float]) -> None:
        """Values by name below the canvas; of many every second, third ... from the first."""
        for value in values[:: ceil(len(values) / _MOST_NAMES) or 1]:
            self.below(x(value), tick_name(value))

    def svg(self) -> Markup:
        """The picture, which a keyboard can walk through; by its name the script finds its spots."""
        high = _n(self.height + _FOOT)
        return Markup(
            '<svg class="plot" id="{}" data-find="{}" height="{}" tabindex="0" role="group" aria-label="{}">'
            '<svg class="shapes" width="100%" height="{}" viewBox="0 0 {} {}" preserveAspectRatio="none">{}</svg>'
            '{}<svg class="at" width="1" height="1" overflow="visible"><circle r="8"/></svg></svg>'
        ).format(
            self.name, self.find, high, self.label, _n(self.height), _n(WIDE), _n(self.height),
            Markup("").join(self._shapes), Markup("").join(self._letters),
        )  # fmt: skip

    def _path(self, look: str, data: str) -> None:
        if data:
            self._shapes.append(Markup('<path class="{}" d="{}"/>').format(look, data))


def fits(name: str, numbers: str) -> bool:
    """Whether a name and its numbers stand side by side in the narrowest panel."""
    return _BOLD_PX * len(name) + _PLAIN_PX * len(numbers) <= _ROOM_PX


def shortened(words: str) -> str:
    """So many of its letters as fit a phone."""
    return words if len(words) <= _LETTERS else f"{words[: _LETTERS - 1].rstrip()}…"


def _through(points: Sequence[XY]) -> str:
    return "".join(f"{'L' if n else 'M'}{_n(x)} {_n(y)}" for n, (x, y) in enumerate(points))


def _n(value: float) -> str:
    """A tenth of a pixel is not seen."""
    return f"{value:.1f}".removesuffix(".0")
