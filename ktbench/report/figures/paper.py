"""Published beside simulated: bars and curves as in KTransformers (SOSP'25), Fig. 3, 7, 10 to 12 and 14, and scores."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from ktbench.report.figures.curves import looks
from ktbench.report.figures.frame import Frame, fitted, is_wide
from ktbench.report.figures.paper_panels import (
    BAR_LOOKS,
    EDGE,
    FITTED,
    MOST_CURVES,
    PANEL_IN,
    RATIO,
    SCORED,
    PaperPanel,
    bar_namer,
    by_benchmark,
    left_out,
    line_mark,
    namer,
    panel_layout,
    panels_of,
    split_panels,
    unit_of,
    values_of,
    x_name,
    x_of,
)
from ktbench.report.figures.sheet import PAGE_IN, RIGHT_IN, Mark, Sheet, mark
from ktbench.report.figures.text_metrics import (
    INK,
    PAD_IN,
    TICK_PT,
    line_in,
    text_above,
    width_in,
    wrapped,
)
from ktbench.results.paper import PaperLine
from ktbench.results.quantities.text import number

_BAR_SHARE = 0.84  # of the room of a group
_TEXT_IN, _LIST_FOOT_IN = 4.1, 0.34  # of the list of scores
_NARROW = 10  # bars that one panel in a column has room for
_SCORES: Mapping[str, Mapping[str, Any]] = {
    SCORED[0]: {"facecolor": "#ffffff"},
    SCORED[1]: {"facecolor": "#ffffff", "hatch": "//////"},
}


@dataclass(frozen=True, kw_only=True, slots=True)
class _PaperGroup:
    """Bars side by side: heights, with what they show, by the name of their look."""

    name: str
    heights: dict[str, tuple[float, Mark]]


def draw_paper_bars(lines: Sequence[PaperLine], caption: Sequence[str]) -> Sheet:
    """A panel for each model, machine and unit; for each arm what was published, simulated and measured.

    Arms that nobody published and that have one value are left to the table: there is nothing beside it.
    """
    drawn = [line for line in lines if _has_partner(line)]
    panels = panels_of(drawn)
    name = bar_namer(drawn)
    groups = [[_PaperGroup(name=name(line), heights=_heights(line)) for line in panel.lines] for panel in panels]
    return _drawn(panels, groups, BAR_LOOKS, (*caption, *left_out(lines, drawn, "without a published value")))


def _has_partner(line: PaperLine) -> bool:
    return line.published is not None or len(values_of(line)) > 1


def draw_paper_scores(lines: Sequence[PaperLine], caption: Sequence[str]) -> Sheet:
    """A panel for each model, a group for each benchmark: with all experts on time and with deferred ones."""
    panels = panels_of([line for line in lines if line.published is not None])
    return _drawn(panels, [_benchmarks(panel) for panel in panels], _SCORES, caption)


def _heights(line: PaperLine) -> dict[str, tuple[float, Mark]]:
    """By look: of a simulated value also whether constants were fitted on its number."""
    looks = {"simulated": FITTED} if line.fitted else {}
    return {looks.get(look, look): (value, line_mark(line)) for look, value in values_of(line).items()}


def _benchmarks(panel: PaperPanel) -> list[_PaperGroup]:
    found = by_benchmark(panel)
    return [
        _PaperGroup(name=name, heights={look: (line.published or 0.0, line_mark(line)) for look, line in lines.items()})
        for name, lines in found.items()
    ]


def _drawn(
    panels: Sequence[PaperPanel],
    groups: Sequence[Sequence[_PaperGroup]],
    looks: Mapping[str, Mapping[str, Any]],
    caption: Sequence[str],
) -> Sheet:
    shown = [look for look in looks if any(look in one.heights for panel in groups for one in panel)]
    most, abreast = max(map(len, groups)), max(len(one.heights) for panel in groups for one in panel)
    layout = panel_layout(len(panels), narrow=len(panels) == 1 and most * abreast <= _NARROW)
    folded = [_folded([one.name for one in panel], layout.each_in) for panel in groups]
    upright = not all(folded)
    labels = [[_broken(one.name) for one in panel] if upright else folded[n] or [] for n, panel in enumerate(groups)]
    below_in = _below_in([label for panel in labels for label in panel], upright=upright)
    legend = [Patch(**looks[look], **EDGE, label=look) for look in shown]
    layout = replace(layout, below_in=layout.below_in + below_in)
    figure, every = layout.draw([panel.title for panel in panels], caption, legend)
    units = {unit_of(panel.metric) for panel in panels}
    for n, (panel, axes) in enumerate(zip(panels, every, strict=True)):
        _draw(axes, groups[n], looks, layout.each_in, _BAR_SHARE / abreast)
        axes.set_xticks(range(len(groups[n])), labels[n])
        axes.tick_params(axis="x", length=0, rotation=90 if upright else 0)
        if layout.is_leftmost(n) or len(units) > 1:
            axes.set_ylabel(unit_of(panel.metric))
    return figure


def _folded(names: Sequence[str], room_in: float) -> list[str] | None:
    """Names in lines that fit below their groups; None where they do not."""
    each = 0.97 * room_in / len(names)
    folded = [name if width_in(name) <= each else _broken(name) for name in names]
    return folded if all(width_in(line) <= each for name in folded for line in name.split("\n")) else None


def _broken(name: str) -> str:
    """In lines: the features of an arm, its numbers, and the settings."""
    return name.replace(", ", ",\n").replace(" deferral=", "\ndeferral=")


def _below_in(labels: Sequence[str], *, upright: bool) -> float:
    """Room that labels take below an axis."""
    if upright:
        return max(width_in(line) for label in labels for line in label.split("\n")) + 2 * PAD_IN
    return (1.4 + max(label.count("\n") for label in labels)) * line_in()


def _draw(
    axes: Axes,
    groups: Sequence[_PaperGroup],
    looks: Mapping[str, Mapping[str, Any]],
    room_in: float,
    each: float,
) -> None:
    """Groups of bars, each of them `each` of the room of a group wide."""
    slots = max(len(groups), 2)
    texts = [number(height, 3) for group in groups for height, _ in group.heights.values()]
    upright = max(width_in(text) for text in texts) > 0.9 * each * room_in / slots
    tall = max(width_in(text) for text in texts) if upright else line_in()
    least, most = _span(groups)
    axes.set_ylim(least * 1.1, most / (1 - (tall + 2 * PAD_IN) / PANEL_IN))
    axes.set_xlim(-0.5 - (slots - len(groups)) / 2, len(groups) - 0.5 + (slots - len(groups)) / 2)
    for n, group in enumerate(groups):
        there = [(*group.heights[look], style) for look, style in looks.items() if look in group.heights]
        for place, (height, at, style) in enumerate(there):
            x = n + (place - (len(there) - 1) / 2) * each
            (box,) = axes.bar(x, height, each, zorder=2, **style, **EDGE)
            mark(box, at)
            text_above(axes, x, max(height, 0.0), number(height, 3), upright=upright)


def _span(groups: Sequence[_PaperGroup]) -> tuple[float, float]:
    heights = [height for group in groups for height, _ in group.heights.values()]
    return min(0.0, *heights), max(0.0, *heights)


Look = dict[str, Any]

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


def draw_paper_curves(lines: Sequence[PaperLine], caption: Sequence[str]) -> Sheet:
    """A panel for each model and machine; arms by shade and marker, published hollow and dashed, simulated filled.

    Curves of which nothing was published or measured beside a simulation are left to the table.
    """
    x = x_of(lines)
    assert x is not None
    placed = [line for line in lines if isfinite(x(line)) and values_of(line)]
    name = namer(placed, skip=(RATIO,))
    compared = {name(line) for line in placed if _has_partner(line)}
    drawn = [line for line in placed if name(line) in compared]
    name = namer(drawn, skip=(RATIO,))
    panels = split_panels(panels_of(drawn), name, x)
    styles = looks(list(dict.fromkeys(name(line) for panel in panels for line in panel.lines)))
    narrow = len(panels) == 1 and len(styles) <= MOST_CURVES
    layout = panel_layout(len(panels), narrow=narrow, below_in=_BELOW_IN)
    titles = [panel.title for panel in panels]
    absent = (*left_out(lines, placed, "without a place on the axis"), *left_out(placed, drawn, "of unpublished arms"))
    caption = (*caption, *absent)
    figure, every = layout.draw(titles, caption, _legend(styles, drawn))
    for n, (panel, axes) in enumerate(zip(panels, every, strict=True)):
        ys = [value for line in panel.lines for value in values_of(line).values()]
        frame = fitted(axes, map(x, panel.lines), ys, ys, x_name(panel, x), log_y=is_wide(ys, ys))
        for label, style in styles.items():
            _draw_paper_curves(frame, [line for line in panel.lines if name(line) == label], x, style)
        axes.set_ylabel(panel.metric if layout.is_leftmost(n) else "")
    return figure


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


def _draw_paper_curves(frame: Frame, lines: Sequence[PaperLine], x: Callable[[PaperLine], float], style: Look) -> None:
    for provenance, change in _PROVENANCE.items():
        points = {(x(line), values_of(line)[provenance]): line for line in lines if provenance in values_of(line)}
        if points:
            found = sorted(points)
            look: Look = {"zorder": 3} | style | change(style)
            (drawn,) = frame.axes.plot([at for at, _ in found], [value for _, value in found], **look)
            mark(drawn, *(line_mark(points[point]) for point in found))


def draw_paper_list(lines: Sequence[PaperLine], caption: Sequence[str]) -> Sheet:
    """One dot for each score beside the words of its conditions."""
    shown = [line for line in lines if line.published is not None]
    texts = [wrapped("; ".join(filter(None, (line.precision, line.what))), TICK_PT, _TEXT_IN) for line in shown]
    heights = [(len(text) + 0.5) * line_in() for text in texts]
    tall = sum(heights)
    figure = Sheet(PAGE_IN, tall + _LIST_FOOT_IN, caption)
    left = _TEXT_IN + 2 * RIGHT_IN
    axes = figure.axes_at(left, 0.0, PAGE_IN - left - 3 * RIGHT_IN, tall)
    places = [sum(heights[:n]) + heights[n] / 2 for n in range(len(shown))]
    _draw_paper_list(axes, shown, places, tall)
    axes.set_yticks(places, ["\n".join(text) for text in texts], ha="left")
    axes.tick_params(axis="y", pad=72 * (_TEXT_IN + RIGHT_IN / 2), length=0)
    return figure


def _draw_paper_list(axes: Axes, lines: Sequence[PaperLine], places: Sequence[float], tall: float) -> None:
    values = [line.published or 0.0 for line in lines]
    axes.set_ylim(tall, 0)
    room = 0.15 * (max(values) - min(values)) or 1.0
    axes.set_xlim(min(values) - room, max(values) + 1.5 * room)
    axes.hlines(places, *axes.get_xlim(), color="#cccccc", linewidth=0.4, zorder=1)
    (points,) = axes.plot(values, places, "o", markersize=4, markerfacecolor="white", markeredgecolor=INK, zorder=3)
    mark(points, *map(line_mark, lines))
    for value, place in zip(values, places, strict=True):
        axes.annotate(
            number(value, 3), (value, place), xytext=(4, 0), textcoords="offset points", va="center",
            color=INK, bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.4}, zorder=2,
        )  # fmt: skip
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.set_xlabel(f"{lines[0].metric}, published")
