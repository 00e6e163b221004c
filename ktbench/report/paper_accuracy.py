"""Published accuracy: relative change as a heat map (KTransformers, SOSP'25, Fig. 13), and scores as a list."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ktbench.report.accuracy.cells import lines_by_place, published_cell
from ktbench.report.accuracy.counts import FEATURES
from ktbench.report.accuracy.heat import CELL_IN, FOOT_IN, GAP_IN, HEAD_IN, draw_feature
from ktbench.report.lettering import INK, LABEL_PT, TICK_PT, VALUE_PT, line_in, width_in, wrapped
from ktbench.report.paper_panels import tasks_named
from ktbench.report.sheet import PAGE_IN, RIGHT_IN, TOP_IN, axes_at, sheet
from ktbench.report.text import number
from ktbench.results.paper import PaperLine

_TEXT_IN = 4.1


def draw_heat(lines: Sequence[PaperLine], caption: Sequence[str]) -> Figure:
    """A panel for deferred and one for skipped experts: tasks below each other, their number from left to right.

    The first column is the score without either, the others the change relative to it in percent.
    """
    tasks = tasks_named(lines)
    left = max(width_in(task, TICK_PT) for task in tasks) + 2 * RIGHT_IN
    each = (PAGE_IN - left - RIGHT_IN - GAP_IN) / 2
    tall = len(tasks) * CELL_IN
    figure = sheet(PAGE_IN, TOP_IN + HEAD_IN + tall + FOOT_IN, caption)
    for n, feature in enumerate(FEATURES):
        axes = axes_at(figure, left + n * (each + GAP_IN), TOP_IN + HEAD_IN, each, tall)
        draw_published_heat(axes, lines, feature)
        axes.set_yticks(range(len(tasks)), tasks if n == 0 else [""] * len(tasks))
    return figure


def draw_published_heat(axes: Axes, lines: Sequence[PaperLine], feature: str, where: str = "") -> None:
    """The panel of a feature: those of `lines` that are about it, or about neither."""
    counts, found = lines_by_place(lines, feature)
    cells = {place: published_cell(line) for place, line in found.items()}
    draw_feature(axes, cells, counts, len(tasks_named(lines)), feature, where)


def draw_list(lines: Sequence[PaperLine], caption: Sequence[str]) -> Figure:
    """One dot for each score beside the words of its conditions."""
    shown = [line for line in lines if line.published is not None]
    texts = [wrapped(_words(line), TICK_PT, _TEXT_IN) for line in shown]
    heights = [(len(text) + 0.5) * line_in(TICK_PT) for text in texts]
    tall = sum(heights)
    figure = sheet(PAGE_IN, TOP_IN + tall + FOOT_IN, caption)
    left = _TEXT_IN + 2 * RIGHT_IN
    axes = axes_at(figure, left, TOP_IN, PAGE_IN - left - 3 * RIGHT_IN, tall)
    places = [sum(heights[:n]) + heights[n] / 2 for n in range(len(shown))]
    _draw_list(axes, shown, places, tall)
    axes.set_yticks(places, ["\n".join(text) for text in texts], ha="left")
    axes.tick_params(axis="y", pad=72 * (_TEXT_IN + RIGHT_IN / 2), length=0)
    return figure


def _draw_list(axes: Axes, lines: Sequence[PaperLine], places: Sequence[float], tall: float) -> None:
    values = [line.published or 0.0 for line in lines]
    axes.set_ylim(tall, 0)
    room = 0.15 * (max(values) - min(values)) or 1.0
    axes.set_xlim(min(values) - room, max(values) + 1.5 * room)
    axes.hlines(places, *axes.get_xlim(), color="#cccccc", linewidth=0.4, zorder=1)
    axes.plot(values, places, "o", markersize=4, markerfacecolor="white", markeredgecolor=INK, zorder=3)
    for value, place in zip(values, places, strict=True):
        axes.annotate(
            number(value, 3), (value, place), xytext=(4, 0), textcoords="offset points", fontsize=VALUE_PT, va="center",
            color=INK, bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.4}, zorder=2,
        )  # fmt: skip
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.tick_params(labelsize=TICK_PT, width=0.6, pad=2)
    axes.set_xlabel(f"{lines[0].metric}, published", fontsize=LABEL_PT, labelpad=1.5)


def _words(line: PaperLine) -> str:
    return "; ".join(filter(None, (line.precision, line.what)))
