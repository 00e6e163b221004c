"""The change of an average over how many experts are deferred or skipped, with its intervals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from ktbench.report.accuracy.counts import Sequel
from ktbench.report.lettering import LABEL_PT, TICK_PT
from ktbench.report.lines import REFERENCE

_SHADES = ("#1d3f5e", "#5d93c4", "#7d7d7d", "#35688f", "#9dbdda", "#555555")
_MARKERS = {"deferral": "o", "skipping": "s"}
_ROOM = 0.08


def sequel_handles(sequels: Sequence[Sequel]) -> list[Artist]:
    """Entries of a legend."""
    return [Line2D([], [], label=one.name, **_look(one, n)) for n, one in enumerate(sequels)]


def draw_sequels(axes: Axes, sequels: Sequence[Sequel], *, near: bool) -> None:
    """Draw curves with bands and whiskers; `near`: at the scale of those of deferral alone."""
    axes.axhline(0, color=REFERENCE, linewidth=0.5, zorder=1)
    for n, one in enumerate(sequels):
        _draw(axes, one, _look(one, n))
    counts = sorted({count for one in sequels for count, *_ in one.points})
    axes.set_xlim(counts[0] - 0.3, counts[-1] + 0.3)
    axes.set_xticks(counts)
    axes.set_ylim(_limits([one for one in sequels if one.feature == "deferral" or not near] or sequels))
    axes.yaxis.set_major_locator(MaxNLocator(6))
    axes.tick_params(labelsize=TICK_PT, width=0.6, length=2.5, pad=2)
    axes.set_xlabel("experts deferred or skipped of a token", fontsize=LABEL_PT, labelpad=1.5)
    axes.set_ylabel("change of the average, %", fontsize=LABEL_PT, labelpad=2)
    axes.set_title("at the scale of deferral" if near else "whole", fontsize=LABEL_PT, pad=2)


def _draw(axes: Axes, one: Sequel, look: dict[str, Any]) -> None:
    axes.plot([count for count, *_ in one.points], [value for _, value, *_ in one.points], zorder=3, **look)
    known = [
        (count, value, low, high) for count, value, low, high in one.points if low is not None and high is not None
    ]
    if not known:
        return
    counts, values, lows, highs = zip(*known, strict=True)
    axes.fill_between(counts, lows, highs, color=look["color"], alpha=0.14, linewidth=0, zorder=1.5)
    reach = [
        [v - low for v, low in zip(values, lows, strict=True)],
        [h - v for v, h in zip(values, highs, strict=True)],
    ]
    axes.errorbar(
        counts, values, reach, linestyle="", color=look["color"], elinewidth=0.7, capsize=1.6, capthick=0.7, zorder=2.5
    )


def _limits(sequels: Sequence[Sequel]) -> tuple[float, float]:
    ends = [end for one in sequels for _, *values in one.points for end in values if end is not None]
    low, high = min(ends), max(ends)
    room = _ROOM * (high - low) or 1.0
    return low - room, high + room


def _look(one: Sequel, number: int) -> dict[str, Any]:
    shade = REFERENCE if one.published else _SHADES[number % len(_SHADES)]
    return {
        "color": shade,
        "linewidth": 0.8 if one.published else 1.0,
        "linestyle": (0, (3, 2)) if one.published else "-",
        "marker": _MARKERS[one.feature],
        "markersize": 3.0,
        "markerfacecolor": "white" if one.published else shade,
        "markeredgewidth": 0.7,
    }
