"""One waterfall: the baseline, a step for each feature on an axis of factors, and what all make together."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from ktbench.report.attribution_bars import Bar, Kind, bars_of
from ktbench.report.frame import decades
from ktbench.report.lettering import INK, LABEL_PT, PAD_IN, TICK_PT, VALUE_PT, lettered, line_in, width_in
from ktbench.report.sheet import PLOT_IN
from ktbench.results.attribution import Attribution

_LOOKS: Mapping[Kind, Mapping[str, Any]] = {
    "base": {},
    "gain": {"facecolor": "#a0bfdb"},
    "loss": {"facecolor": "#ffffff", "hatch": "/////"},
    "whole": {"facecolor": "#4a76a3"},
}
_WIDTH = 0.7  # of a slot
_LEAST_SPAN = 1.1  # of the axis, so that equal cells do not look far apart


def draw_waterfall(axes: Axes, one: Attribution, width_in_: float) -> None:
    """Draw the bars of an attribution into axes `width_in_` inches wide."""
    bars = bars_of(one)
    low, high = _limits(bars)
    axes.set_yscale("log")
    axes.set_xlim(-0.6, len(bars) - 0.4)
    axes.set_ylim(low, high)
    axes.axhline(1, color=INK, linewidth=0.5, linestyle=(0, (4, 3)), zorder=1)
    for x, bar in enumerate(bars):
        _draw(axes, x, bar)
    for x, (bar, following) in enumerate(pairwise(bars)):
        if bar.end is not None and one.orders and following.end is not None:
            axes.plot([x + _WIDTH / 2, x + 1 - _WIDTH / 2], [bar.end, bar.end], color=INK, linewidth=0.5, zorder=1.5)
    axes.set_ylabel(f"speed-up over {one.baseline} (×)", fontsize=LABEL_PT, labelpad=2)
    axes.yaxis.set_major_locator(FixedLocator(_ticks(low, high)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.tick_params(axis="y", labelsize=TICK_PT, width=0.6, length=2.5, pad=2)
    axes.set_xticks(range(len(bars)), [_folded(bar.name, width_in_ / len(bars)) for bar in bars], fontsize=TICK_PT)
    axes.tick_params(axis="x", length=0, pad=2)


def _draw(axes: Axes, x: int, bar: Bar) -> None:
    if bar.end is not None:
        bottom, height = min(bar.start, bar.end), abs(bar.end - bar.start)
        axes.bar(x, height, _WIDTH, bottom=bottom, **_LOOKS[bar.kind], edgecolor=INK, linewidth=0.6, zorder=2)
    if bar.whisker is not None:
        reach = [[bar.whisker.mid - bar.whisker.low], [bar.whisker.high - bar.whisker.mid]]
        axes.errorbar(x, bar.whisker.mid, reach, ecolor="black", elinewidth=0.8, capsize=1.8, capthick=0.8, zorder=4)
    lettered(axes, x, bar.top, bar.text, upright=False)


def _limits(bars: tuple[Bar, ...]) -> tuple[float, float]:
    """Ends of the axis, so that whiskers and the text above them fit."""
    low, high = min(bar.bottom for bar in bars), max(*(bar.top for bar in bars), _LEAST_SPAN)
    low = low / (high / low) ** 0.04
    lines = max(bar.text.count("\n") + 1 for bar in bars)
    free = 1 - (lines * line_in(VALUE_PT) + 3 * PAD_IN) / PLOT_IN
    return low, low * (high / low) ** (1 / free)


def _ticks(low: float, high: float) -> list[float]:
    """Decades with what is between them; in less than one as many round factors as tell them apart."""
    coarse = decades(low, high)
    if len(coarse) >= 3:
        return coarse
    for step in (0.5, 0.2, 0.1, 0.05, 0.02, 0.01):
        found = [round(n * step, 2) for n in range(1, int(high / step) + 1) if low <= n * step <= high]
        if len(found) >= 3:
            return found
    return [1.0]


def _folded(name: str, room_in: float) -> str:
    return name if width_in(name, TICK_PT) <= 0.9 * room_in else name.replace(" ", "\n")


def names_in(one: Attribution, width: float) -> float:
    """Room that the names below the axis take, in inches, where bars share `width` inches."""
    names = [bar.name for bar in bars_of(one)]
    lines = max(_folded(name, width / len(names)).count("\n") + 1 for name in names)
    return (lines + 0.6) * line_in(TICK_PT)
