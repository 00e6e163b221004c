"""How curves look: a shade, a marker and a fill for each arm, whiskers, rings around what is NOISY."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.artist import Artist
from matplotlib.lines import Line2D

from ktbench.report.curves import Curve, CurvePanel
from ktbench.report.frame import Frame
from ktbench.report.lettering import INK

REFERENCE = "#8c8c8c"
# Shades that differ in grey, markers that differ in shape, every second one hollow: an arm that hides another shows it.
_SHADES = ("#7d7d7d", "#1d3f5e", "#5d93c4", "#000000", "#35688f", "#9dbdda", "#555555")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_WIDTH, _SIZE, _RING = 1.0, 3.4, 6.4
_CURVE_IN = 0.02  # a curve must not be covered: wider than it is


def draw_curves(frame: Frame, panel: CurvePanel, names: Sequence[str], *, bands: bool = False) -> None:
    """Draw the curves of a panel; `names` are those of all panels and decide how each looks.

    Intervals are whiskers, with `bands` also shaded from point to point.
    """
    for curve in panel.references:
        xs, ys = [point.x for point in curve.points], [point.y.mid for point in curve.points]
        alone = "_" if len(xs) == 1 else "None"
        frame.axes.plot(xs, ys, color=REFERENCE, linewidth=0.6, marker=alone, markersize=_RING, zorder=2)
        frame.take_line(list(zip(xs, ys, strict=True)))
    for curve in panel.curves:
        if bands:
            _shade(frame, curve, looks(names)[curve.name]["color"])
        _draw(frame, curve, looks(names)[curve.name])
        frame.take_line([(point.x, point.y.mid) for point in curve.points], _CURVE_IN)
        for point in curve.points:
            frame.take_marker((point.x, point.y.mid))
            frame.take_line([(point.x, point.y.low), (point.x, point.y.high)])


def name_references(frame: Frame, panel: CurvePanel) -> None:
    """Write the names of references at the level of their right ends, or along their first half."""
    for curve in panel.references:
        first, middle, last = curve.points[0], curve.points[len(curve.points) // 2], curve.points[-1]
        rising = ((first.x, first.y.mid), (middle.x, middle.y.mid))
        level = ((middle.x, last.y.mid), (last.x, last.y.mid))
        frame.label(curve.name, *level, REFERENCE, also=(rising,) if len(curve.points) > 2 else ())


def handles(names: Sequence[str], *, noisy: bool) -> list[Artist]:
    """Legend entries of curves, and of the ring where something is NOISY."""
    entries: list[Artist] = [Line2D([], [], label=name, **look) for name, look in looks(names).items()]
    return [*entries, Line2D([], [], label="NOISY", linestyle="", **_RINGED)] if noisy else entries


def looks(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """How curves look by their names.

    The first look is kept for base, so that the other arms look alike in figures with and without it.
    """
    base = next((name for name in names if name.startswith("base")), None)
    others = [name for name in names if name != base]
    return {name: _look(0 if name == base else others.index(name) + 1) for name in names}


def _shade(frame: Frame, curve: Curve, color: str) -> None:
    xs = [point.x for point in curve.points]
    lows, highs = [point.y.low for point in curve.points], [point.y.high for point in curve.points]
    frame.axes.fill_between(xs, lows, highs, color=color, alpha=0.14, linewidth=0, zorder=1.5)


def _draw(frame: Frame, curve: Curve, look: dict[str, Any]) -> None:
    xs, ys = [point.x for point in curve.points], [point.y.mid for point in curve.points]
    frame.axes.errorbar(xs, ys, _reach(curve), elinewidth=0.7, capsize=1.6, capthick=0.7, zorder=3, **look)
    ringed = [point for point in curve.points if point.noisy]
    if ringed:
        where = [point.x for point in ringed], [point.y.mid for point in ringed]
        frame.axes.plot(*where, linestyle="", zorder=4, **_RINGED)


def _reach(curve: Curve) -> list[list[float]] | None:
    """How far whiskers reach below and above the points; None where no point has an interval."""
    below = [point.y.mid - point.y.low for point in curve.points]
    above = [point.y.high - point.y.mid for point in curve.points]
    return [below, above] if any(below) or any(above) else None


def _look(number: int) -> dict[str, Any]:
    shade = _SHADES[number % len(_SHADES)]
    return {
        "color": shade,
        "linewidth": _WIDTH,
        "marker": _MARKERS[number % len(_MARKERS)],
        "markersize": _SIZE,
        "markerfacecolor": "white" if number % 2 == 0 else shade,
        "markeredgewidth": 0.8,
    }


_RINGED: dict[str, Any] = {
    "marker": "o",
    "markersize": _RING,
    "markerfacecolor": "none",
    "markeredgecolor": INK,
    "markeredgewidth": 0.5,
}
