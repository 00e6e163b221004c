"""The figure of a run that asks a suite, of the kind that its part asks for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from matplotlib import style
from matplotlib.figure import Figure

from ktbench.report.accuracy.rows import AccuracyRow
from ktbench.report.figure import STYLE
from ktbench.report.figures.dots import draw_accuracy
from ktbench.report.figures.frontier import draw_frontier
from ktbench.report.figures.heat import draw_deferral, draw_precision
from ktbench.report.paper_lines import PaperLine
from ktbench.report.tables import Table
from ktbench.spec.sweep import FigureKind

_KINDS: Mapping[FigureKind, Callable[[Sequence[AccuracyRow], Sequence[str]], Figure]] = {
    "accuracy": draw_accuracy,
    "precision_accuracy": draw_precision,
    "frontier": draw_frontier,
}


def draw_answers(rows: Sequence[AccuracyRow], lines: Sequence[PaperLine], table: Table) -> Figure:
    """The figure of `rows`, which `table` shows in numbers; `lines` are published numbers that stand beside them."""
    caption = [table.figure_caption, *table.conditions]
    with style.context(STYLE):
        if table.figure == "deferral_accuracy":
            return draw_deferral(rows, lines, caption)
        return _KINDS[table.figure](rows, caption)
