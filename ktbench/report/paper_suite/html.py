"""All published numbers of a run on one page without other files: figures and tables, light and dark."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from ktbench.report.documents import NUMERIC, Document, overview
from ktbench.report.template import render
from ktbench.report.web.section import Figures
from ktbench.results import Run


def html(run: Run, papers: Sequence[Document]) -> str:
    """The page: how far simulated values are from published ones, then each part with its figure and its table."""
    figures = Figures()
    sections = [(paper.table, figures.embed(paper.draw(), paper.table.title)) for paper in papers]
    text = render(
        "paper.html.j2",
        header=run.header,
        sections=sections,
        overview=tuple(overview(papers)),
        numeric=NUMERIC,
        figure_css=Markup(figures.styles.css),
    )
    return f"{text.rstrip()}\n"
