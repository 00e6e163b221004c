"""Grouped bars: normalised to the baseline as in KTransformers (SOSP'25), Fig. 14; speeds of systems as in Fig. 12."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from matplotlib.figure import Figure

from ktbench.report.bars import Panel, draw_panel, swatches
from ktbench.report.legend import LEGEND_LINE_IN, draw_legend, legend_lines
from ktbench.report.lettering import VALUE_PT
from ktbench.report.sheet import COLUMN_IN, LEFT_IN, PAGE_IN, PLOT_IN, RIGHT_IN, TOP_IN, axes_at, sheet
from ktbench.report.slots import Group, slots_of
from ktbench.report.table import Table
from ktbench.results.row import Row, shows_speeds

# The arms of one group are named below their bars, those of several in the legend.
_SLOTS_IN_COLUMN, _SLOTS_OF_GROUPS_IN_COLUMN, _SLOTS_IN_PANEL = 6, 8, 64


def draw_breakdown(rows: Sequence[Row], table: Table) -> Figure:
    """A slot for every arm: a bar where it was timed, its reason where it was not."""
    groups, notes = slots_of(rows, 0.95 * PLOT_IN, VALUE_PT)
    fitting = _SLOTS_IN_COLUMN if len(groups) == 1 else _SLOTS_OF_GROUPS_IN_COLUMN
    width = COLUMN_IN if _slots(groups) <= fitting else PAGE_IN
    inner = width - LEFT_IN - RIGHT_IN
    arms = tuple(dict.fromkeys(slot.arm for group in groups for slot in group.slots))
    baseline = None if shows_speeds(rows) else rows[0].baseline
    panels = [
        Panel(groups=part, arms=arms, baseline=baseline, width_in=inner, height_in=PLOT_IN) for part in _parts(groups)
    ]
    legend = legend_lines(swatches(arms), inner) if len(groups) > 1 else []
    top = TOP_IN + len(legend) * LEGEND_LINE_IN
    plots_in = top + sum(PLOT_IN + panel.below_in() for panel in panels)
    figure = sheet(width, plots_in, [table.figure_caption, *notes, *table.conditions])
    draw_legend(figure, legend, TOP_IN)
    for panel in panels:
        draw_panel(axes_at(figure, LEFT_IN, top, inner), panel)
        top += PLOT_IN + panel.below_in()
    return figure


def _slots(groups: Sequence[Group]) -> int:
    """Slots with one left free between groups."""
    return sum(len(group.slots) + 1 for group in groups) - 1


def _parts(groups: Sequence[Group]) -> Iterator[tuple[Group, ...]]:
    """Groups one after the other, a new row of them where a page is too narrow for more."""
    part: tuple[Group, ...] = ()
    for group in groups:
        if part and _slots((*part, group)) > _SLOTS_IN_PANEL:
            yield part
            part = ()
        part = (*part, group)
    yield part
