"""Values with their intervals as dots, a line for each with its name and its numbers: on a phone, too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from textwrap import wrap

from ktbench.report.html.plot import WIDE, Plot, Spot, fits
from ktbench.report.html.scale import Scale, linear_around, tick_name

_LETTERS = 40  # of a name in one line, so that it fits a phone
_LINE, _STRIP = 15.0, 18.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Mark:
    """A value with the ends of its interval, the value again where it has none; `hollow` ones are rings."""

    name: str
    text: str
    card: int
    mid: float
    low: float
    high: float
    look: str = "s1"
    hollow: bool = False


def forest(marks: Sequence[Mark], x: Scale, label: str, reference: float | None = None) -> Plot:
    """Each mark below its name and its numbers. `reference`: where the rule stands that they are read from."""
    apart = not all(map(_fits, marks))
    tops = [0.0, *accumulate(_tall(mark, apart) for mark in marks)]
    plot = Plot(height=tops[-1], label=f"{label}; arrow keys go from one to the next", find="rows")
    strips = [(top - _STRIP, top) for top in tops[1:]]
    for tick in x.ticks(5):
        plot.lines("grid", [[(x(tick), top), (x(tick), foot)] for top, foot in strips])
        plot.below(x(tick), tick_name(tick))
    if reference is not None:
        plot.lines("reference", [[(x(reference), top), (x(reference), foot)] for top, foot in strips])
    plot.lines("rule", [[(0.0, top), (WIDE, top)] for top in tops[1:-1]])
    for mark, top, (foot, _) in zip(marks, tops, strips, strict=False):
        _draw(plot, mark, top, foot, x)
    return plot


def tallest(mark: Mark) -> float:
    """Height of a mark whose numbers stand below its name, in pixels."""
    return _tall(mark, True)


def linear(marks: Sequence[Mark], *, reference: float | None = None) -> Scale:
    """An axis that holds all marks with some room."""
    ends = [end for mark in marks for end in (mark.low, mark.high)] + ([] if reference is None else [reference])
    return linear_around(ends, 0.0, WIDE)


def _lines(mark: Mark) -> list[str]:
    return wrap(mark.name, _LETTERS) or [""]


def _fits(mark: Mark) -> bool:
    """Whether the numbers can stand on the last line of the name."""
    return fits(_lines(mark)[-1], mark.text)


def _tall(mark: Mark, apart: bool) -> float:
    return _LINE * (len(_lines(mark)) + apart) + _STRIP


def _draw(plot: Plot, mark: Mark, top: float, foot: float, x: Scale) -> None:
    """`foot` is where the letters end and the strip of the dot begins."""
    for n, line in enumerate(_lines(mark)):
        plot.text("name", (0.0, top + _LINE * n + 12), line)
    plot.text("value", (WIDE, foot - 3), mark.text, "end")
    y = foot + 7
    if mark.low < mark.high:
        plot.lines(f"reach {mark.look}", [[(x(mark.low), y), (x(mark.high), y)]])
    plot.dots(f"dot {mark.look}", [(x(mark.mid), y)])
    if mark.hollow:
        plot.dots("hole", [(x(mark.mid), y)])
    plot.spots.append(Spot(x=x(mark.mid), y=y, card=mark.card))
