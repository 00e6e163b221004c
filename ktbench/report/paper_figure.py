"""The figure of a part's published numbers, in the form that they ask for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from matplotlib.figure import Figure

from ktbench.report.figures.heat import draw_heat, draw_list
from ktbench.report.figures.paper import draw_paper_bars, draw_paper_curves, draw_paper_scores
from ktbench.report.figures.paper_panels import Form, form_of
from ktbench.report.paper_lines import PaperLine
from ktbench.report.tables import Table

_FORMS: Mapping[Form, Callable[[Sequence[PaperLine], Sequence[str]], Figure]] = {
    "curves": draw_paper_curves,
    "bars": draw_paper_bars,
    "scores": draw_paper_scores,
    "heat": draw_heat,
    "list": draw_list,
}


def draw_paper(lines: Sequence[PaperLine], table: Table) -> Figure:
    """The figure of `lines`, which `table` shows in numbers."""
    return _FORMS[form_of(lines)](lines, [table.figure_caption, *table.methods])
