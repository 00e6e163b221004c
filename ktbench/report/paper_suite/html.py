"""All published numbers of a run on one page without other files: figures and tables, light and dark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from ktbench.report.documents import Document
from ktbench.report.paper_suite.overview import HEADINGS, NUMERIC, overview
from ktbench.report.table import Table
from ktbench.report.template import render
from ktbench.report.web.section import Figures, PageFigure
from ktbench.results import Run


@dataclass(frozen=True, kw_only=True, slots=True)
class _Section:
    """A part as the template shows it."""

    id: str
    title: str
    figure: PageFigure
    table: Table
    headings: tuple[str, ...]
    numeric: tuple[bool, ...]


def html(run: Run, papers: Sequence[Document]) -> str:
    """The page: how far simulated values are from published ones, then each part with its figure and its table."""
    figures = Figures()
    sections = [_section(paper, figures) for paper in papers]
    text = render(
        "paper.html.j2",
        header=run.header,
        sections=sections,
        overview=(HEADINGS, *overview(papers)),
        numeric=NUMERIC,
        figure_css=Markup(figures.styles.css),
    )
    return f"{text.rstrip()}\n"


def _section(paper: Document, figures: Figures) -> _Section:
    table = paper.table
    return _Section(
        id=table.part or "part",
        title=table.title,
        figure=figures.embed(paper.draw(), table.title),
        table=table,
        headings=tuple(column.heading for column in table.columns),
        numeric=tuple(column.numeric for column in table.columns),
    )
