"""The figure of shares: a waterfall from the baseline to all features, and beside it what pairs gain or lose."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from ktbench.report.attribution_matrix import draw_matrix, matrix_in
from ktbench.report.attribution_table import absences, group_name, settings_shown
from ktbench.report.attribution_waterfall import draw_waterfall, names_in
from ktbench.report.lettering import LABEL_PT, TICK_PT, line_in
from ktbench.report.sheet import COLUMN_IN, LEFT_IN, PAGE_IN, PLOT_IN, RIGHT_IN, TOP_IN, axes_at, sheet
from ktbench.report.table import Table
from ktbench.results.attribution import Attribution

_BARS_IN_COLUMN = 8
_TITLE_IN, _GAP_IN = 0.16, 0.75


def draw_attribution(attributions: Sequence[Attribution], table: Table) -> Figure:
    """A waterfall for each group below each other; with `interactions` the matrix of pairs to the right of each."""
    settings = settings_shown(attributions)
    matrices = [matrix_in(one) if table.figure == "interactions" else (0.0, 0.0) for one in attributions]
    aside = max(width + _GAP_IN if width else 0.0 for width, _ in matrices)
    bars = max(len(one.shares) for one in attributions) + 2
    width = COLUMN_IN if bars <= _BARS_IN_COLUMN and not aside else PAGE_IN
    plot = width - LEFT_IN - RIGHT_IN - aside
    heads = [_TITLE_IN if group_name(one, settings) or aside else 0.0 for one in attributions]
    talls = [
        head + max(PLOT_IN + names_in(one, plot), tall + 2 * line_in(TICK_PT)) + TOP_IN
        for one, head, (_, tall) in zip(attributions, heads, matrices, strict=True)
    ]
    missing = [f"{note}." for one in attributions for note in absences(one, settings)]
    figure = sheet(width, TOP_IN + sum(talls), [table.figure_caption, *missing, *table.conditions])
    top = TOP_IN
    for one, head, tall, (wide, high) in zip(attributions, heads, talls, matrices, strict=True):
        axes = axes_at(figure, LEFT_IN, top + head, plot)
        axes.set_title(group_name(one, settings), fontsize=LABEL_PT, pad=3)
        draw_waterfall(axes, one, plot)
        if wide:
            left = width - RIGHT_IN - wide
            matrix = axes_at(figure, left, top + head + max(0.0, (PLOT_IN - high) / 2), wide, high)
            draw_matrix(matrix, one)
        top += tall
    return figure
