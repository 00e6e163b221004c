"""Published beside simulated as bars: KTransformers (SOSP'25), Fig. 10, 12, 14; benchmark scores as in its Table 2."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ktbench.report.lettering import LABEL_PT, PAD_IN, TICK_PT, VALUE_PT, lettered, line_in, width_in
from ktbench.report.paper_grid import BAR_LOOKS, EDGE, PANEL_IN, Grid
from ktbench.report.paper_panels import SCORED, PaperPanel, bar_namer, by_benchmark, panels_of, values_of
from ktbench.report.text import number
from ktbench.results.paper import PaperLine

_BAR_SHARE = 0.84  # of the room of a group
_NARROW = 10  # bars that one panel in a column has room for
_SCORES: Mapping[str, Mapping[str, Any]] = {
    SCORED[0]: {"facecolor": "#ffffff"},
    SCORED[1]: {"facecolor": "#ffffff", "hatch": "//////"},
}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Group:
    """Bars side by side: heights by the name of their look."""

    name: str
    heights: dict[str, float]


def draw_paper_bars(lines: Sequence[PaperLine], caption: Sequence[str]) -> Figure:
    """A panel for each model, machine and unit; for each arm what was published, simulated and measured."""
    drawn = [line for line in lines if values_of(line)]
    panels = panels_of(drawn)
    name = bar_namer(drawn)
    groups = [[_Group(name=name(line), heights=values_of(line)) for line in panel.lines] for panel in panels]
    return _drawn(panels, groups, BAR_LOOKS, caption)


def draw_paper_scores(lines: Sequence[PaperLine], caption: Sequence[str]) -> Figure:
    """A panel for each model, a group for each benchmark: with all experts on time and with deferred ones."""
    panels = panels_of([line for line in lines if line.published is not None])
    return _drawn(panels, [_benchmarks(panel) for panel in panels], _SCORES, caption)


def _benchmarks(panel: PaperPanel) -> list[_Group]:
    found = by_benchmark(panel)
    return [
        _Group(name=name, heights={look: line.published or 0.0 for look, line in lines.items()})
        for name, lines in found.items()
    ]


def _drawn(
    panels: Sequence[PaperPanel],
    groups: Sequence[Sequence[_Group]],
    looks: Mapping[str, Mapping[str, Any]],
    caption: Sequence[str],
) -> Figure:
    shown = [look for look in looks if any(look in one.heights for panel in groups for one in panel)]
    most = max(map(len, groups))
    grid = Grid(count=len(panels), narrow=len(panels) == 1 and most * len(shown) <= _NARROW)
    folded = [_folded([one.name for one in panel], grid.panel_in) for panel in groups]
    upright = not all(folded)
    labels = [[_broken(one.name) for one in panel] if upright else folded[n] or [] for n, panel in enumerate(groups)]
    below_in = _below_in([label for panel in labels for label in panel], upright=upright)
    legend = [Patch(**looks[look], **EDGE, label=look) for look in shown]
    placed = grid.place([panel.title for panel in panels], below_in, legend, caption)
    units = {panel.metric for panel in panels}
    for n, (panel, axes) in enumerate(zip(panels, placed.axes, strict=True)):
        _draw(axes, groups[n], [(look, looks[look]) for look in shown], grid.panel_in)
        axes.set_xticks(range(len(groups[n])), labels[n])
        axes.tick_params(axis="x", length=0, rotation=90 if upright else 0)
        if n % grid.columns == 0 or len(units) > 1:
            axes.set_ylabel(panel.metric, fontsize=LABEL_PT, labelpad=2)
    return placed.figure


def _folded(names: Sequence[str], room_in: float) -> list[str] | None:
    """Names in lines that fit below their groups; None where they do not."""
    each = 0.97 * room_in / len(names)
    folded = [name if width_in(name, TICK_PT) <= each else _broken(name) for name in names]
    return folded if all(width_in(line, TICK_PT) <= each for name in folded for line in name.split("\n")) else None


def _broken(name: str) -> str:
    """In lines: the features of an arm, its numbers, and the settings."""
    return name.replace(", ", ",\n").replace(" deferral=", "\ndeferral=")


def _below_in(labels: Sequence[str], *, upright: bool) -> float:
    """Room that labels take below an axis."""
    if upright:
        return max(width_in(line, TICK_PT) for label in labels for line in label.split("\n")) + 2 * PAD_IN
    return (1.4 + max(label.count("\n") for label in labels)) * line_in(TICK_PT)


def _draw(axes: Axes, groups: Sequence[_Group], looks: Sequence[tuple[str, Mapping[str, Any]]], room_in: float) -> None:
    slots = max(len(groups), 2)
    each = _BAR_SHARE / len(looks)
    texts = [number(height, 3) for group in groups for height in group.heights.values()]
    upright = max(width_in(text, VALUE_PT) for text in texts) > 0.9 * each * room_in / slots
    tall = max(width_in(text, VALUE_PT) for text in texts) if upright else line_in(VALUE_PT)
    least, most = _span(groups)
    axes.set_ylim(least * 1.1, most / (1 - (tall + 2 * PAD_IN) / PANEL_IN))
    axes.set_xlim(-0.5 - (slots - len(groups)) / 2, len(groups) - 0.5 + (slots - len(groups)) / 2)
    for n, group in enumerate(groups):
        there = [(group.heights[look], style) for look, style in looks if look in group.heights]
        for place, (height, style) in enumerate(there):
            x = n + (place - (len(there) - 1) / 2) * each
            axes.bar(x, height, each, zorder=2, **style, **EDGE)
            lettered(axes, x, max(height, 0.0), number(height, 3), upright=upright)


def _span(groups: Sequence[_Group]) -> tuple[float, float]:
    heights = [height for group in groups for height in group.heights.values()]
    return min(0.0, *heights), max(0.0, *heights)
