"""How figures look: fonts, fills, shades, markers; and how wide text is in print, so that none is cut or overlaps."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from math import ceil
from typing import Any, TypeVar

from matplotlib import rcParams
from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.font_manager import FontProperties

from ktbench.spec.errors import printable
from ktbench.spec.sweep import FigureStyle

T = TypeVar("T")

COLUMN_IN, PAGE_IN = 3.5, 7.0
DPI = 300
INK, REFERENCE, RULE = "#222222", "#8c8c8c", "#dddddd"
PAD_IN = 0.03  # between a bar and the text above it
_FONT, _LABEL_PT = "DejaVu Sans", 6.5
_LEADING = 1.3
_POINTS_PER_INCH = 72
# Fixed salt, no dates, fonts inside the file, no matplotlibrc of the user: the same rows give the same bytes.
_OURS: Any = {
    "axes.labelpad": 2.0,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlepad": 3.0,
    "hatch.linewidth": 0.5,
    "pdf.fonttype": 42,
    "svg.fonttype": "path",
    "svg.hashsalt": "ktbench",
    "text.parse_math": False,
    **{
        f"{side}tick.{key}": value
        for side in "xy"
        for key, value in {"major.size": 2.5, "major.width": 0.6, "major.pad": 2}.items()
    },
}


def look_of(style: FigureStyle) -> Any:
    """What `matplotlib.style.context` takes for the font and the sizes that are asked for."""
    size = style.size or _LABEL_PT
    sizes = {"font.size": size - 0.5, "axes.labelsize": size, "axes.titlesize": size, "legend.fontsize": size}
    ticks = {"xtick.labelsize": size - 0.5, "ytick.labelsize": size - 0.5}
    return ["default", _OURS | {"font.family": style.font or _FONT, **sizes, **ticks}]


def tick_pt() -> float:
    """Points of the names of ticks and of text in plots."""
    return float(rcParams["font.size"])


def label_pt() -> float:
    """Points of legends, titles, and names of axes."""
    return float(rcParams["axes.labelsize"])


def caption_pt() -> float:
    """Points of captions."""
    return tick_pt() - 0.4


# From light to dark in steps that a grey print keeps; hatches also distinguish neighbours.
_FILLS = ("#ffffff", "#dde9f3", "#c0d5e8", "#a0bfdb", "#80a8cd", "#628fbb", "#4a76a3")
_HATCHES = ("", "/////", "|||||", "\\\\\\\\\\", "xxxxx", "-----", "+++++")
EDGE: dict[str, Any] = {"edgecolor": INK, "linewidth": 0.6}
HOLLOW: dict[str, Any] = {"facecolor": "#ffffff", "hatch": "//////"}
LIGHT, MIDDLE, DARK = ({"facecolor": fill} for fill in ("#dde9f3", "#a0bfdb", "#4a76a3"))
# Shades that differ in grey, a brown where a blue would be too like another; markers that differ in shape, every second
# one hollow: an arm that hides another shows it.
_SHADES = ("#7d7d7d", "#1d3f5e", "#5d93c4", "#000000", "#9c4a00", "#9dbdda", "#555555")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
MARKER_PT = 3.4


def fills(names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """How bars look by the names of their series."""
    count = len(_FILLS)
    return {
        name: {"facecolor": _FILLS[n % count], "hatch": _HATCHES[(n + n // count) % count]}
        for n, name in enumerate(dict.fromkeys(names))
    }


def looks(names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """How curves and points look by the names of their series.

    The first look is kept for base, so that the other arms look alike in figures with and without it.
    """
    names = list(dict.fromkeys(names))
    base = next((name for name in names if name.startswith("base")), None)
    others = [name for name in names if name != base]
    return {name: _look(0 if name == base else others.index(name) + 1) for name in names}


def _look(number: int) -> dict[str, Any]:
    shade = _SHADES[number % len(_SHADES)]
    return {
        "color": shade,
        "linewidth": 1.0,
        "marker": _MARKERS[number % len(_MARKERS)],
        "markersize": MARKER_PT,
        "markerfacecolor": "white" if number % 2 == 0 else shade,
        "markeredgewidth": 0.8,
    }


_SIGNS = re.compile(r"(?<=[=./,:;_-])")  # after which a long word is broken first

_RENDERER: Any = RendererAgg(1, 1, DPI)  # type: ignore[no-untyped-call]


def width_in(text: str, size_pt: float | None = None) -> float:
    """Width of the widest line of a text in inches, in the figure's font; of ticks unless a size is given."""
    family = tuple(rcParams["font.family"])
    return max(_width_in(line, size_pt or tick_pt(), family) for line in text.split("\n"))


@lru_cache(8192)
def _width_in(line: str, size_pt: float, family: tuple[str, ...]) -> float:
    font = FontProperties(size=size_pt, family=list(family))
    return float(_RENDERER.get_text_width_height_descent(line, font, ismath=False)[0]) / DPI


def line_in(size_pt: float | None = None) -> float:
    """Distance between lines in inches; of names of ticks unless a size is given."""
    return (size_pt or tick_pt()) * _LEADING / _POINTS_PER_INCH


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
    """The name of a tick; one wider than `room_in` is broken at commas, spaces, then before pluses and the like."""

    def fits(words: Sequence[str], between: str) -> bool:
        return width_in(between.join(words)) <= room_in

    def lines(phrase: str) -> Iterator[str]:
        for words in packed(phrase.split(" "), lambda words: fits(words, " ")):
            parts = list(filter(None, re.split(r"(?=\+)|(?<==)", " ".join(words))))
            yield from map("".join, packed(parts, lambda parts: fits(parts, "")))

    if fits([name], ""):
        return name
    return "\n".join(line for phrase in name.replace(", ", ",\n").split("\n") for line in lines(phrase))


def balanced(count: int, most: int) -> int:
    """Columns, at most `most`, for `count` cells in as few lines as possible that are equally long or nearly so."""
    return ceil(count / ceil(count / max(1, most)))
