"""Which figures a document has: a row for each kind, with the recipe that draws it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from matplotlib import style as looks_of_matplotlib

from ktbench.report.figures import answers, published, shares, speeds
from ktbench.report.figures.sheet import Sheet
from ktbench.report.figures.style import look_of
from ktbench.results.row import Row
from ktbench.spec.sweep import NO_STYLE, FigureKind, FigureStyle

if TYPE_CHECKING:
    from ktbench.report.documents import Document

Recipe = Callable[["Document", FigureStyle], Sheet]
# By kind of document and of figure; of other kinds of figure the first of the document.
_RECIPES: Mapping[str, Mapping[FigureKind, Recipe]] = {
    "table": {
        "bars": speeds.breakdown,
        "throughput": speeds.throughput,
        "latency": speeds.latency,
        "roles": speeds.roles,
        "depth": speeds.depth,
        "frontier": speeds.formats,
        "serving": speeds.serving,
        "interactivity": speeds.interactivity,
    },
    "accuracy": {
        "accuracy": answers.accuracy,
        "deferral_accuracy": answers.deferral,
        "precision_accuracy": answers.precision,
        "frontier": answers.frontier,
    },
    "attribution": {"waterfall": shares.shares, "interactions": shares.shares},
    "learning": {"learning": shares.learning},
    "paper": {"paper": published.published},
}


def draw(document: Document, style: FigureStyle = NO_STYLE) -> Sheet:
    """The figure of a document, of the kind that its part asks for, with model, work and machine above it.

    Raises RequestError where a style leaves no room for it.
    """
    recipes = _RECIPES[document.kind]
    recipe = recipes.get(document.table.figure, next(iter(recipes.values())))
    with looks_of_matplotlib.context(look_of(style)):
        return recipe(document, style).settle(document.table.headline)


def draw_change(before: Sequence[Row], after: Sequence[Row], caption: Sequence[str]) -> Sheet:
    """The figure of a comparison of two runs of curves of throughput."""
    with looks_of_matplotlib.context(look_of(NO_STYLE)):
        return speeds.throughput_change(before, after, caption, NO_STYLE).settle()


def further_figures(document: Document, style: FigureStyle = NO_STYLE) -> Iterator[tuple[str, Sheet]]:
    """Further figures of a document by title: what stands behind the numbers of the first one."""
    with looks_of_matplotlib.context(look_of(style)):
        found = [(title, figure.settle()) for title, figure in _further(document, style) if figure is not None]
    yield from found


def _further(document: Document, style: FigureStyle) -> Iterator[tuple[str, Sheet | None]]:
    rows = document.answers
    if document.kind == "table":
        yield "Roofline", speeds.roofline(document.rows, style)
        yield "Samples over time", speeds.samples(document.rows, style)
    elif document.kind == "accuracy" and any(row.results for row in rows):
        # Scores as dots where the first figure shows them otherwise, or not those of all cells.
        kind = document.table.figure
        if kind != "accuracy" and not (kind == "deferral_accuracy" and answers.all_counted(rows)):
            caption = ["Scores and their paired differences, each with its 95 % interval."]
            yield "Scores", answers.scores(rows, caption, style)
        if any(row.measures for row in rows):
            yield "Drift", answers.drift(rows, style)
