"""The figure of a run that asks a suite, of the kind that its part asks for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from matplotlib import style
from matplotlib.figure import Figure

from ktbench.report.accuracy.deferral import draw_deferral
from ktbench.report.accuracy.dots import draw_accuracy
from ktbench.report.accuracy.precision import draw_precision
from ktbench.report.accuracy.scatter import draw_frontier
from ktbench.report.figure import STYLE
from ktbench.report.table import Table
from ktbench.results.accuracy import AccuracyRow
from ktbench.results.paper import PaperLine
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
