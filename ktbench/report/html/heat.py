"""Heat maps: a strip of cells below the name of each line, shaded by what is lost; the numbers stand in the cells."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence

from ktbench.report.accuracy.cells import HeatCell
from ktbench.report.html.plot import WIDE, Plot, Spot

_PITCH, _NAME, _CELL = 40.0, 15.0, 22.0
_LIMITS = (0.5, 2.0, 5.0, 15.0, 40.0)  # in percent: where the shades of losses begin
_SHADES = ("f0", "f1", "f2", "f3", "f4", "f6")

Carded = tuple[HeatCell, int]
LEGEND = (
    (f"box {_SHADES[0]}", f"loses less than {_LIMITS[0]:g} %, or gains"),
    *(
        (f"box {shade}", f"{low:g} to {high:g} %")
        for shade, low, high in zip(_SHADES[1:], _LIMITS, _LIMITS[1:], strict=False)
    ),
    (f"box {_SHADES[-1]}", f"{_LIMITS[-1]:g} % and more"),
)


def heat_plot(
    lines: Sequence[str], columns: Sequence[str], cells: Mapping[tuple[int, int], Carded], label: str
) -> Plot:
    """Cells with the numbers of their cards, by the numbers of their column and their line."""
    height, wide = _PITCH * len(lines), WIDE / len(columns)
    plot = Plot(height=height, label=f"{label}; arrow keys go from cell to cell", find="cells")
    for y, name in enumerate(lines):
        plot.text("name", (0.0, _PITCH * y + 11), name)
    for x, name in enumerate(columns):
        plot.below((x + 0.5) * wide, name)
    for (x, y), (cell, card) in sorted(cells.items(), key=lambda placed: placed[0][::-1]):
        top, middle = _PITCH * y + _NAME, (x + 0.5) * wide
        shade = "plain" if cell.change is None else _shade(cell.change)
        plot.box(f"cell {shade}", (x * wide, top), wide, _CELL)
        plot.text(f"in {shade}{' sure' if cell.sure else ''}", (middle, top + 15), cell.text, "middle")
        plot.spots.append(Spot(x=middle, y=top + _CELL / 2, card=card))
    return plot


def _shade(change: float) -> str:
    return _SHADES[bisect_right(_LIMITS, -change)]
