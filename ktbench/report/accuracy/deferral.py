"""Accuracy over deferred and skipped experts: heat maps by category, ours and published, and the average as curves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ktbench.report.accuracy.cells import cell_at_count
from ktbench.report.accuracy.counts import (
    AVERAGE_NAME,
    FEATURES,
    Sequel,
    groups_by_name,
    rows_by_count,
    sequels_of,
    subject_title,
)
from ktbench.report.accuracy.curves import draw_sequels, sequel_handles
from ktbench.report.accuracy.heat import CELL_IN, FOOT_IN, GAP_IN, HEAD_IN, draw_feature
from ktbench.report.legend import LEGEND_LINE_IN, draw_legend, legend_lines
from ktbench.report.lettering import TICK_PT, width_in
from ktbench.report.paper_accuracy import draw_published_heat
from ktbench.report.paper_panels import tasks_named
from ktbench.report.sheet import PAGE_IN, RIGHT_IN, TOP_IN, axes_at, sheet
from ktbench.results.accuracy import AccuracyRow, parts_of_average
from ktbench.results.answers import AVERAGE, SubjectKind
from ktbench.results.paper import PaperLine

_CURVES_IN, _ABOVE_IN, _TITLE_IN, _BELOW_IN, _MARGIN_IN = 1.5, 0.1, 0.15, 0.36, 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class _Block:
    """A heat map: its lines from top to bottom, and who fills the panel of a feature."""

    names: tuple[str, ...]
    where: str
    rows: tuple[AccuracyRow, ...] = ()
    lines: tuple[PaperLine, ...] = ()

    @property
    def tall_in(self) -> float:
        return HEAD_IN + len(self.names) * CELL_IN + FOOT_IN

    def draw(self, axes: Axes, feature: str) -> None:
        if self.lines:
            draw_published_heat(axes, self.lines, feature, self.where)
        else:
            _draw_ours(axes, self.rows, feature, self.where)


def draw_deferral(rows: Sequence[AccuracyRow], lines: Sequence[PaperLine], caption: Sequence[str]) -> Figure:
    """A heat map for each group of rows, that of the published `lines` where there are any, and the averages below."""
    blocks, sequels = _blocks(rows, lines), sequels_of(rows, lines)
    left = max(width_in(name, TICK_PT) for block in blocks for name in block.names) + 2 * RIGHT_IN
    each = (PAGE_IN - left - RIGHT_IN - GAP_IN) / 2
    heat_in = sum(block.tall_in for block in blocks)
    legend = legend_lines(sequel_handles(sequels), PAGE_IN - 2 * RIGHT_IN)
    above_in = _ABOVE_IN + len(legend) * LEGEND_LINE_IN + _TITLE_IN
    curves_in = above_in + _CURVES_IN + _BELOW_IN if sequels else 0.0
    figure = sheet(PAGE_IN, TOP_IN + heat_in + curves_in, caption)
    top = TOP_IN
    for block in blocks:
        for n, feature in enumerate(FEATURES):
            tall = len(block.names) * CELL_IN
            axes = axes_at(figure, left + n * (each + GAP_IN), top + HEAD_IN, each, tall)
            block.draw(axes, feature)
            axes.set_yticks(range(len(block.names)), block.names if n == 0 else [""] * len(block.names))
        top += block.tall_in
    if sequels:
        _draw_averages(figure, sequels, legend, top + _ABOVE_IN)
    return figure


def _draw_averages(figure: Figure, sequels: Sequence[Sequel], legend: Sequence[Sequence[Artist]], top: float) -> None:
    """All of the changes on the left, those of deferral at their own scale on the right."""
    draw_legend(figure, legend, top)
    each = PAGE_IN / 2 - _MARGIN_IN - RIGHT_IN
    for n, near in enumerate((False, True)):
        left = _MARGIN_IN + n * PAGE_IN / 2
        axes = axes_at(figure, left, top + len(legend) * LEGEND_LINE_IN + _TITLE_IN, each, _CURVES_IN)
        draw_sequels(axes, sequels, near=near)


def _blocks(rows: Sequence[AccuracyRow], lines: Sequence[PaperLine]) -> list[_Block]:
    _, names = parts_of_average(rows)
    shown = (*(subject_title(name) for name in names), AVERAGE_NAME)
    groups = groups_by_name(rows)
    found = [_Block(names=shown, where=name, rows=group) for name, group in groups.items()]
    if lines:
        model = next(line.model for line in lines)
        found.append(_Block(names=tuple(tasks_named(lines)), where=f"published ({model})", lines=tuple(lines)))
    return found


def _draw_ours(axes: Axes, rows: Sequence[AccuracyRow], feature: str, where: str) -> None:
    mine = rows_by_count(rows, feature)
    kind, names = parts_of_average(rows)
    places: list[tuple[str, SubjectKind]] = [*((name, kind) for name in names), (AVERAGE, "average")]
    counts = sorted(mine)
    cells = {
        (x, y): cell_at_count(mine[count].result(name, what), count)
        for x, count in enumerate(counts)
        for y, (name, what) in enumerate(places)
    }
    draw_feature(axes, cells, counts, len(places), feature, where)
