"""How wide text is in print, so that nothing in a figure overlaps or is cut off; and text above bars."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, TypeVar

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.font_manager import FontProperties
from matplotlib.text import Text

from ktbench.spec.errors import printable

T = TypeVar("T")

LABEL_PT, TICK_PT, CAPTION_PT = 6.5, 6.0, 5.6
INK = "#222222"
PAD_IN = 0.03  # between a bar and the text above it

_DPI = 300
_POINTS_PER_INCH = 72
_LEADING = 1.3

_SIGNS = re.compile(r"(?<=[=./,:;_-])")  # after which a long word is broken first

_RENDERER: Any = RendererAgg(1, 1, _DPI)  # type: ignore[no-untyped-call]


@lru_cache(8192)
def width_in(text: str, size_pt: float = TICK_PT) -> float:
    """Width of a line of text in inches, in the figure's font."""
    font = FontProperties(size=size_pt)
    return float(_RENDERER.get_text_width_height_descent(text, font, ismath=False)[0]) / _DPI


def line_in(size_pt: float = TICK_PT) -> float:
    """Distance between lines in inches."""
    return size_pt * _LEADING / _POINTS_PER_INCH


def packed(items: Iterable[T], fits: Callable[[Sequence[T]], bool]) -> list[list[T]]:
    """Items in as many lines as they need; one that does not even fit alone has a line of its own."""
    lines: list[list[T]] = []
    for item in items:
        if lines and fits([*lines[-1], item]):
            lines[-1].append(item)
        else:
            lines.append([item])
    return lines


def wrapped(text: str, size_pt: float, limit_in: float) -> list[str]:
    """Lines no wider than `limit_in`, broken at spaces; a longer word is broken after a sign, or where it must.

    Control characters, for which no font has a glyph, are escapes.
    """
    pieces = (piece for word in printable(text).split() for piece in _pieces(word, size_pt, limit_in))
    return [" ".join(line) for line in packed(pieces, lambda line: width_in(" ".join(line), size_pt) <= limit_in)]


def parts_of(word: str) -> list[str]:
    """The parts that a long word is broken into before anything smaller."""
    return [part for part in _SIGNS.split(word) if part]


def _pieces(word: str, size_pt: float, limit_in: float) -> Iterator[str]:
    """A word in pieces of as many parts as fit; of a part that does not, as many letters as do, at least one."""
    for line in packed(parts_of(word), lambda line: width_in("".join(line), size_pt) <= limit_in):
        piece = "".join(line)
        while piece:
            head = _letters_that_fit(piece, size_pt, limit_in)
            yield piece[:head]
            piece = piece[head:]


def _letters_that_fit(word: str, size_pt: float, limit_in: float) -> int:
    """At least one. Measures few beginnings of the word, none much longer than what fits: words may be long paths."""

    def is_wide(letters: int) -> bool:
        return width_in(word[:letters], size_pt) > limit_in

    most = 1
    while most < len(word) and not is_wide(most):
        most *= 2
    return max(1, bisect_left(range(1, min(most, len(word)) + 1), True, key=is_wide))


def folded(name: str, room_in: float) -> str:
    """The name of a tick; one wider than `room_in` is broken at spaces, then before pluses and after equals signs."""
    if width_in(name) <= room_in:
        return name
    words = name.replace(", ", ",\n").replace(" ", "\n").split("\n")
    parts = (filter(None, re.split(r"(?=\+)|(?<==)", word)) for word in words)
    lines = (line for word in parts for line in packed(word, lambda line: width_in("".join(line)) <= room_in))
    return "\n".join(map("".join, lines))


def text_above(axes: Axes, x: float, y: float, text: str, *, upright: bool) -> Text:
    """Write text that starts just above y, on white where a line or a neighbour would cross it."""
    return axes.annotate(
        text,
        (x, y),
        xytext=(0, PAD_IN * _POINTS_PER_INCH),
        textcoords="offset points",
        rotation=90 if upright else 0,
        ha="center",
        va="bottom",
        color=INK,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.4},
        zorder=3,
        annotation_clip=False,
    )
