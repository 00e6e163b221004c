"""Of each part how much was published and how far the simulated values are from it, and of all parts together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ktbench.report.documents import Document
from ktbench.report.text import DASH
from ktbench.results.paper import PaperLine, error_summary

HEADINGS = ("part", "published", "simulated", "median error (%)", "90 % within (%)", "largest (%)", "bias (%)")

NUMERIC = (False, *[True] * (len(HEADINGS) - 1))


def overview(papers: Sequence[Document]) -> Iterator[tuple[str, ...]]:
    """Cells below HEADINGS: a row for each part, and where there are several one for all; repeats count once."""
    for paper in papers:
        yield _row(paper.table.title, paper.lines)
    if len(papers) > 1:
        yield _row("all parts", [line for paper in papers for line in paper.lines])


def _row(title: str, lines: Sequence[PaperLine]) -> tuple[str, ...]:
    published = str(len({line.id for line in lines if line.id}))
    errors = error_summary(lines)
    if errors is None:
        return (title, published, *[DASH] * (len(HEADINGS) - 2))
    sizes = (errors.median, errors.p90, errors.largest)
    return (title, published, str(errors.n), *(f"{100 * size:.1f}" for size in sizes), f"{100 * errors.bias:+.1f}")
