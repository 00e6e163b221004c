"""Which figures a document has, and who draws them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from matplotlib import style

from ktbench.report.documents import Document
from ktbench.report.figures.attribution import draw_attribution
from ktbench.report.figures.bars import draw_breakdown
from ktbench.report.figures.deferral import all_counted, draw_deferral
from ktbench.report.figures.dots import draw_accuracy, draw_measured
from ktbench.report.figures.formats import draw_formats, draw_formats_of_answers
from ktbench.report.figures.frontier import draw_frontier
from ktbench.report.figures.heat import draw_heat, draw_precision
from ktbench.report.figures.paper import draw_paper_bars, draw_paper_curves, draw_paper_list, draw_paper_scores
from ktbench.report.figures.paper_panels import Form, form_of
from ktbench.report.figures.roles import draw_roles
from ktbench.report.figures.roofline import draw_roofline
from ktbench.report.figures.samples import draw_samples
from ktbench.report.figures.serving import draw_interactivity, draw_serving
from ktbench.report.figures.sheet import STYLE, Sheet
from ktbench.report.figures.sweeps import (
    draw_depth,
    draw_latency,
    draw_learning,
    draw_throughput,
    draw_throughput_change,
)
from ktbench.report.table import Table
from ktbench.results.accuracy import AccuracyRow, is_graded
from ktbench.results.paper import PaperLine
from ktbench.results.row import Row
from ktbench.spec.sweep import FigureKind

_OF_SPEEDS: Mapping[FigureKind, Callable[[Sequence[Row], Table], Sheet]] = {
    "throughput": draw_throughput,
    "latency": draw_latency,
    "roles": draw_roles,
    "depth": draw_depth,
    "frontier": draw_formats,
    "serving": draw_serving,
    "interactivity": draw_interactivity,
}
_OF_ANSWERS: Mapping[FigureKind, Callable[[Sequence[AccuracyRow], Sequence[str]], Sheet]] = {
    "accuracy": draw_accuracy,
    "precision_accuracy": draw_precision,
    "frontier": draw_frontier,
}
_OF_PAPERS: Mapping[Form, Callable[[Sequence[PaperLine], Sequence[str]], Sheet]] = {
    "curves": draw_paper_curves,
    "bars": draw_paper_bars,
    "scores": draw_paper_scores,
    "heat": draw_heat,
    "list": draw_paper_list,
}


def draw(document: Document) -> Sheet:
    """The figure of a document, of the kind that its part asks for; of speeds bars unless the kind draws them."""
    table = document.table
    if document.kind == "table":
        return draw_speeds(document.rows, table)
    if document.kind == "paper":
        return draw_published(document.lines, table)
    with style.context(STYLE):
        if document.kind == "attribution":
            return _titled(draw_attribution(document.attributions, table), table)
        if document.kind == "learning":
            return _titled(draw_learning(document.learned, table), table)
        return _titled(_of_answers(document, [table.figure_caption]), table)


def draw_speeds(rows: Sequence[Row], table: Table) -> Sheet:
    """The figure of the rows of a part."""
    with style.context(STYLE):
        return _titled(_OF_SPEEDS.get(table.figure, draw_breakdown)(rows, table), table)


def draw_change(before: Sequence[Row], after: Sequence[Row], caption: Sequence[str]) -> Sheet:
    """The figure of a comparison of two runs of curves of throughput."""
    with style.context(STYLE):
        return draw_throughput_change(before, after, caption)


def draw_published(lines: Sequence[PaperLine], table: Table) -> Sheet:
    """The figure of a part's published numbers, with what was simulated and measured of them."""
    with style.context(STYLE):
        return _titled(_OF_PAPERS[form_of(lines)](lines, [table.figure_caption]), table)


def further_figures(document: Document) -> Iterator[tuple[str, Sheet]]:
    """Further figures of a document by title: what stands behind the numbers of the first one."""
    found: list[tuple[str, Sheet | None]] = []
    with style.context(STYLE):
        if document.kind == "table":
            found = [("Roofline", draw_roofline(document.rows)), ("Samples over time", draw_samples(document.rows))]
        elif document.kind == "accuracy":
            found = [("Scores", _scores(document)), ("Drift", _drift(document))]
    yield from ((title, figure) for title, figure in found if figure is not None)


def _titled(figure: Sheet, table: Table) -> Sheet:
    """A figure with model, work and machine above it, as it may be seen alone."""
    figure.add_title(table.headline)
    return figure


def _of_answers(document: Document, caption: Sequence[str]) -> Sheet:
    if document.table.figure == "deferral_accuracy":
        return draw_deferral(document.answers, document.lines, caption)
    if document.table.figure == "frontier" and not is_graded(document.answers):
        return draw_formats_of_answers(document.answers, caption)
    return _OF_ANSWERS[document.table.figure](document.answers, caption)


def _scores(document: Document) -> Sheet | None:
    """Scores as dots where the first figure shows them otherwise, or not those of all cells."""
    rows, figure = document.answers, document.table.figure
    counted = figure == "deferral_accuracy" and all_counted(rows)
    if figure == "accuracy" or counted or not any(row.results for row in rows):
        return None
    return draw_accuracy(rows, ["Scores and their paired differences, each with its 95 % interval."])


def _drift(document: Document) -> Sheet | None:
    """What is measured where answers are not graded, unless the first figure is that already."""
    rows = document.answers
    if not any(row.measures for row in rows) or not any(row.results for row in rows):
        return None
    return draw_measured(rows)
