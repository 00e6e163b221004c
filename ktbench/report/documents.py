"""What there is to report of a run: the cells of each part, their scores, and published numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from ktbench.report.accuracy_table import accuracy_table
from ktbench.report.attribution_table import attribution_table
from ktbench.report.learning_table import learning_table
from ktbench.report.markdown import page_of_tables
from ktbench.report.paper_table import paper_table
from ktbench.report.speed_table import table_of
from ktbench.report.table import Table, named
from ktbench.results import Run
from ktbench.results.accuracy import AccuracyRow, accuracy_rows
from ktbench.results.attribution import ATTRIBUTED, Attribution, attributions_of
from ktbench.results.paper import PaperLine, error_summary, paper_lines
from ktbench.results.quantities.text import DASH
from ktbench.results.row import Row
from ktbench.results.rows import rows_of
from ktbench.results.run import parts_of, the_part
from ktbench.results.training.learning import Learned, learned_of
from ktbench.spec.sweep import NO_STYLE, FigureStyle

# Which columns of the overview hold numbers.
NUMERIC = (False, *[True] * 6)


def overview(papers: Sequence[Document]) -> Iterator[tuple[str, ...]]:
    """Headings, then cells: a row for each part, and where there are several one for all; repeats count once."""
    yield "part", "published", "simulated", "median error (%)", "90 % within (%)", "largest (%)", "bias (%)"
    for paper in papers:
        yield _row(paper.table.title, paper.lines)
    if len(papers) > 1:
        yield _row("all parts", [line for paper in papers for line in paper.lines])


def _row(title: str, lines: Sequence[PaperLine]) -> tuple[str, ...]:
    published = str(len({line.id for line in lines if line.id}))
    errors = error_summary(lines)
    if errors is None:
        return (title, published, *[DASH] * 5)
    sizes = (errors.median, errors.p90, errors.largest)
    return (title, published, str(errors.n), *(f"{100 * size:.1f}" for size in sizes), f"{100 * errors.bias:+.1f}")


if TYPE_CHECKING:
    from ktbench.report.figures.sheet import Sheet

Kind = Literal["accuracy", "learning", "table", "attribution", "paper"]
KINDS: tuple[Kind, ...] = ("accuracy", "learning", "table", "attribution", "paper")
# Suffixes that distinguish the documents of a part; the title of an attribution names it already.
_BELOW: Mapping[Kind, str] = {
    "accuracy": ": answers",
    "attribution": "",
    "learning": "",
    "paper": ": beside published numbers",
    "table": ": speed",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """One table with its figure. `run` is a run of one part and `rows` are its rows; a `paper` has `lines`, too.

    Of `accuracy` there are `answers`, and `lines` where published numbers stand beside them; of `attribution` there are
    `attributions`. Where cells learned from examples their `table` and that of what they `learned` have it.
    """

    kind: Kind
    run: Run
    rows: tuple[Row, ...]
    lines: tuple[PaperLine, ...] = ()
    answers: tuple[AccuracyRow, ...] = ()
    attributions: tuple[Attribution, ...] = ()
    learned: tuple[Learned, ...] = ()
    table: Table
    style: FigureStyle = NO_STYLE
    _drawn: list[Sheet] = field(default_factory=list, compare=False, repr=False)

    @property
    def name(self) -> str:
        """Name of its files without their endings."""
        return named(self.kind, self.table.part)

    @property
    def has_figure(self) -> bool:
        """Whether a figure is its own; others belong to the document of published numbers, of answers or of shares."""
        others = ("paper", *ATTRIBUTED)
        if self.learned:
            return (self.kind == "learning") == (self.table.figure == "learning")
        return self.kind != "table" or (self.table.figure not in others and self.run.header.suite is None)

    @property
    def origins(self) -> tuple[str, ...]:
        """Where its numbers are from: those of measured, simulated and published that are among them."""
        found = {row.provenance for row in self.rows if row.timed}
        found |= {one.provenance for one in self.answers if one.has_values}
        published = self.kind == "paper" or any(line.published is not None for line in self.lines)
        ours = (origin for origin in ("measured", "simulated") if origin in found)
        return (*ours, "published") if published else (*ours,)

    def draw(self) -> Sheet:
        """Its figure. Raises RequestError where its style leaves no room for it."""
        # matplotlib takes a second to load: only for those who want the figure.
        from ktbench.report.figures.draw import draw

        return draw(self, self.style)

    @property
    def figure(self) -> Sheet:
        """Its figure, drawn once for files, page and kit."""
        if not self._drawn:
            self._drawn.append(self.draw())
        return self._drawn[0]


def documents_of(run: Run, style: FigureStyle = NO_STYLE) -> tuple[Document, ...]:
    """Documents of all parts in order; a style sets the order of arms and labels, and stands over that of each part."""
    return tuple(
        _styled(document, own)
        for part in parts_of(run)
        for own in [style.over(the_part(part).style or NO_STYLE)]
        for document in _of_part(part, own)
    )


def _styled(document: Document, style: FigureStyle) -> Document:
    """The document with the labels of a style in its table; data keep those of the log."""
    if style == NO_STYLE:
        return document
    table = document.table
    cells = tuple(tuple(map(style.text, line)) for line in table.cells)
    columns = tuple(replace(column, heading=style.text(column.heading)) for column in table.columns)
    return replace(document, style=style, table=replace(table, columns=columns, cells=cells))


def firsts_of_parts(documents: Sequence[Document]) -> list[Document]:
    """The first document of each part, which has all of its rows and answers, in order."""
    return [*{one.table.part: one for one in reversed(documents)}.values()][::-1]


def titles_of(documents: Sequence[Document]) -> tuple[str, ...]:
    """The title of each, which distinguishes documents of one part."""
    parts = [one.table.part for one in documents]
    return tuple(f"{one.table.title}{_BELOW[one.kind] if parts.count(one.table.part) > 1 else ''}" for one in documents)


def _of_part(run: Run, style: FigureStyle) -> Iterator[Document]:
    rows, published = tuple(style.ordered(rows_of(run), lambda row: row.shown)), the_part(run).published
    lines = paper_lines(run, rows) if published else ()
    if run.header.suite is not None and rows:
        yield from _of_suite(run, rows, lines, style)
    elif rows and the_part(run).figure in ATTRIBUTED:
        yield from _of_shares(run, rows)
    elif learned := learned_of(rows):
        table = learning_table(run, rows, learned)
        yield Document(kind="learning", run=run, rows=rows, learned=learned, table=table)
        yield Document(kind="table", run=run, rows=rows, learned=learned, table=table_of(run, rows))
    elif rows:
        yield Document(kind="table", run=run, rows=rows, table=table_of(run, rows))
    if published:
        yield Document(kind="paper", run=run, rows=rows, lines=lines, table=paper_table(run, rows, lines))


def _of_shares(run: Run, rows: tuple[Row, ...]) -> Iterator[Document]:
    """The cells, and the attribution of their speed-up, beside the same figure."""
    attributions = attributions_of(rows)
    table = attribution_table(run, rows, attributions)
    cells = replace(table_of(run, rows), figure_caption=table.figure_caption)
    yield Document(kind="table", run=run, rows=rows, table=cells)
    yield Document(kind="attribution", run=run, rows=rows, attributions=attributions, table=table)


def _of_suite(run: Run, rows: tuple[Row, ...], lines: tuple[PaperLine, ...], style: FigureStyle) -> Iterator[Document]:
    """The scores of answers and, where cells were timed too, their speeds beside the same figure."""
    answers = tuple(style.ordered(accuracy_rows(run), lambda row: row.row.shown))
    table = accuracy_table(run, answers)
    yield Document(kind="accuracy", run=run, rows=rows, lines=lines, answers=answers, table=table)
    if any(row.records for row in rows):
        speeds = replace(table_of(run, rows), figure=table.figure, figure_caption=table.figure_caption)
        yield Document(kind="table", run=run, rows=rows, table=speeds)


def page_of(run: Run, documents: Sequence[Document] | None = None) -> str:
    """Markdown of `report/accuracy.md`, `table.md` and `paper.md`: all parts in order, their figures linked.

    `documents` are those of the run, where the caller has them: forming those of ten thousand rows takes seconds.
    """
    documents = documents_of(run) if documents is None else documents
    tables = ([one.table for one in documents if one.kind == kind] for kind in KINDS)
    return "\n".join(page_of_tables(run.header.title, found) for found in tables if found)
