"""What there is to report of a run: the cells of each part, and published numbers in a table of their own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ktbench.report.paper import PaperLine, paper_lines
from ktbench.report.paper_table import paper_table
from ktbench.report.parts import parts_of, the_part
from ktbench.report.row import Row
from ktbench.report.rows import rows_of
from ktbench.report.tables import Table, named, table_of
from ktbench.store import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Kind = Literal["table", "paper"]
KINDS: tuple[Kind, ...] = ("table", "paper")


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """One table with its figure. `run` is a run of one part and `rows` are its rows; a `paper` has `lines`, too."""

    kind: Kind
    run: Run
    rows: tuple[Row, ...]
    lines: tuple[PaperLine, ...] = ()
    table: Table

    @property
    def name(self) -> str:
        """Name of its files without their endings."""
        return named(self.kind, self.table.part)

    @property
    def has_figure(self) -> bool:
        """Whether a figure is its own; one of published numbers belongs to the document that shows them."""
        return self.kind == "paper" or self.table.figure != "paper"

    def draw(self) -> Figure:
        """Its figure."""
        # matplotlib takes a second to load: only for those who want the figure.
        from ktbench.report.figure import draw, draw_published

        return draw_published(self.lines, self.table) if self.kind == "paper" else draw(self.rows, self.table)


def documents_of(run: Run) -> tuple[Document, ...]:
    """Documents of all parts in order."""
    return tuple(document for part in parts_of(run) for document in _of_part(part))


def _of_part(run: Run) -> Iterator[Document]:
    rows = rows_of(run)
    if rows:
        yield Document(kind="table", run=run, rows=rows, table=table_of(run, rows))
    if the_part(run).published:
        lines = paper_lines(run, rows)
        yield Document(kind="paper", run=run, rows=rows, lines=lines, table=paper_table(run, rows, lines))
