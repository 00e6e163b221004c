"""Simulated against reported speeds of users' machines, with intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

from ktbench.report.figures.curves import REFERENCE, looks
from ktbench.report.figures.frame import decades
from ktbench.report.figures.label_placement import XY
from ktbench.report.figures.sheet import COLUMN_IN, LEFT_IN, RIGHT_IN, STYLE, Sheet

_TALL_IN, _BELOW_IN = 2.9, 0.34
_ROOM = 1.15
_EQUAL: dict[str, Any] = {"color": REFERENCE, "linewidth": 0.8}
_REACH: dict[str, Any] = {"linewidth": 0.5, "alpha": 0.45}
_MARKER: dict[str, Any] = {"linestyle": "", "markersize": 3.2}


@dataclass(frozen=True, kw_only=True, slots=True)
class UserPoint:
    """A report: tokens/s reported and simulated, with the interval of the latter; `fitted`: constants are, on it."""

    program: str
    reported: float
    simulated: float
    low: float
    high: float
    fitted: bool


def draw_users(points: Sequence[UserPoint], headline: str, caption: Sequence[str]) -> Sheet:
    """Reported speed from left to right, simulated upwards, on one logarithmic scale; hollow where fitted."""
    names = list(dict.fromkeys(point.program for point in points))
    look_of = {name: look | _MARKER | {"markerfacecolor": look["color"]} for name, look in looks(names).items()}
    entries = [Line2D([], [], label=name, **look_of[name]) for name in names]
    entries.append(Line2D([], [], label="equal", **_EQUAL))
    with style.context(STYLE):
        figure = Sheet(COLUMN_IN, _TALL_IN + _BELOW_IN, caption, entries)
        axes = figure.axes_at(LEFT_IN, 0.0, COLUMN_IN - LEFT_IN - 2 * RIGHT_IN, _TALL_IN)
    ends = [end for point in points for end in (point.reported, point.low, point.high)]
    limits = min(ends) / _ROOM, max(ends) * _ROOM
    axes.plot(limits, limits, zorder=1, **_EQUAL)
    for point in points:
        look = look_of[point.program]
        axes.plot([point.reported] * 2, [point.low, point.high], color=look["color"], zorder=2, **_REACH)
        hollow = {"markerfacecolor": "white"} if point.fitted else {}
        axes.plot([point.reported], [point.simulated], zorder=3, **look | hollow)
    _scale(axes, limits)
    figure.add_title(headline)
    return figure


def _scale(axes: Axes, limits: XY) -> None:
    axes.set(xscale="log", yscale="log", xlim=limits, ylim=limits)
    axes.set_xlabel("reported, tokens/s")
    axes.set_ylabel("simulated, tokens/s")
    ticks = decades(*limits)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(FixedLocator(ticks))
        axis.set_major_formatter(FixedFormatter([f"{tick:g}" for tick in ticks]))
        axis.set_minor_locator(NullLocator())
