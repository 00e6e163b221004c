"""Published and simulated speeds over tokens or the share of experts at the device: KTransformers, Fig. 3, 7, 11."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from typing import Any

from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from ktbench.report.frame import Frame, decades
from ktbench.report.lettering import LABEL_PT
from ktbench.report.lines import looks
from ktbench.report.paper_axes import MOST_CURVES, left_out, panels_apart, x_name
from ktbench.report.paper_grid import PANEL_IN, Grid
from ktbench.report.paper_panels import RATIO, PaperPanel, namer, panels_of, values_of, x_of
from ktbench.report.spots import XY
from ktbench.results.paper import PaperLine

Look = dict[str, Any]

_WIDE, _TALL = 16.0, 8.0  # from these ratios of largest to least on an axis is logarithmic
_MARGIN, _ROOM_ABOVE = 1.25, 1.12
_BELOW_IN = 0.3
_GREY = "#555555"
# How points of each provenance differ from the look of their arm: published ones are rings around the others.
_PROVENANCE: Mapping[str, Callable[[Look], Look]] = {
    "published": lambda look: {
        "markerfacecolor": "none",
        "markersize": 4.8,
        "linestyle": (0, (4, 2)),
        "linewidth": 0.7,
        "zorder": 4,
    },
    "simulated": lambda look: {"markerfacecolor": look["color"], "markersize": 2.8},
    "measured here": lambda look: {"marker": "*", "markerfacecolor": look["color"], "linestyle": "", "markersize": 6.0},
}


def draw_paper_curves(lines: Sequence[PaperLine], caption: Sequence[str]) -> Figure:
    """A panel for each model and machine; arms by shade and marker, published hollow and dashed, simulated filled."""
    x = x_of(lines)
    assert x is not None
    drawn = [line for line in lines if isfinite(x(line)) and values_of(line)]
    name = namer(drawn, skip=(RATIO,))
    panels = panels_apart(panels_of(drawn), name, x)
    styles = looks(list(dict.fromkeys(name(line) for panel in panels for line in panel.lines)))
    grid = Grid(count=len(panels), narrow=len(panels) == 1 and len(styles) <= MOST_CURVES)
    said = (*caption, *left_out(lines, drawn))
    placed = grid.place([panel.title for panel in panels], _BELOW_IN, _legend(styles, drawn), said)
    for n, (panel, axes) in enumerate(zip(panels, placed.axes, strict=True)):
        frame = _frame(axes, grid.panel_in, panel, x)
        for label, style in styles.items():
            _draw(frame, [line for line in panel.lines if name(line) == label], x, style)
        if n % grid.columns == 0:
            axes.set_ylabel(panel.metric, fontsize=LABEL_PT, labelpad=2)
    return placed.figure


def _legend(styles: Mapping[str, Look], lines: Sequence[PaperLine]) -> list[Artist]:
    """Arms, then provenances in grey."""
    shown = {provenance for line in lines for provenance in values_of(line)}
    grey: Look = {"color": _GREY, "linewidth": 1.0, "marker": "o", "markersize": 3.4, "markeredgewidth": 0.8}
    filled = {name: style | {"markerfacecolor": style["color"]} for name, style in styles.items()}
    arms: list[Artist] = [Line2D([], [], label=name, **style) for name, style in filled.items()]
    return [
        *(arms if len(arms) > 1 else []),
        *(Line2D([], [], label=name, **grey | change(grey)) for name, change in _PROVENANCE.items() if name in shown),
    ]


def _frame(axes: Any, width_in: float, panel: PaperPanel, x: Callable[[PaperLine], float]) -> Frame:
    xs = sorted({x(line) for line in panel.lines})
    ys = [value for line in panel.lines for value in values_of(line).values()]
    log_x, log_y = xs[0] > 0 and xs[-1] > _WIDE * xs[0], max(ys) > _TALL * min(ys)
    frame = Frame(
        axes=axes,
        width_in=width_in,
        height_in=PANEL_IN,
        x=_limits_x(xs, log=log_x),
        y=(min(ys) / _MARGIN, max(ys) * _MARGIN) if log_y else (0.0, max(ys) * _ROOM_ABOVE),
        x_name=x_name(panel, x),
        log_x=log_x,
        log_y=log_y,
    )
    top = frame.y[1]
    frame.ticks(xs, decades(*frame.y) if log_y else [t for t in MaxNLocator(5).tick_values(0, top) if t <= top])
    return frame


def _limits_x(xs: Sequence[float], *, log: bool) -> XY:
    room = 0.05 * (xs[-1] - xs[0])
    return (xs[0] / _MARGIN, xs[-1] * _MARGIN) if log else (xs[0] - room, xs[-1] + room)


def _draw(frame: Frame, lines: Sequence[PaperLine], x: Callable[[PaperLine], float], style: Look) -> None:
    for provenance, change in _PROVENANCE.items():
        points = sorted({(x(line), values_of(line)[provenance]) for line in lines if provenance in values_of(line)})
        if points:
            xs, ys = zip(*points, strict=True)
            look: Look = {"zorder": 3} | style | change(style)
            frame.axes.plot(xs, ys, **look)
