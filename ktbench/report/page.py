"""The pages of a run that hold all its tables, those of its cells and those of published numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ktbench.report.accuracy.markdown import accuracy_markdown
from ktbench.report.accuracy.table import grids_below
from ktbench.report.conditions import common_to
from ktbench.report.documents import KINDS, Document, documents_of
from ktbench.report.markdown import listed, markdown, section
from ktbench.report.tables import Table
from ktbench.results import Run


def page_of(run: Run, documents: Sequence[Document] | None = None) -> str:
    """Markdown of `report/accuracy.md`, `table.md` and `paper.md`: all parts in order, their figures linked.

    `documents` are those of the run, where the caller has them: of ten thousand rows they take seconds.
    """
    documents = documents_of(run) if documents is None else documents
    kinds = [[one for one in documents if one.kind == kind] for kind in KINDS]
    return "\n".join(page_of_kind(run.header.title, found) for found in kinds if found)


def page_of_kind(title: str, documents: Sequence[Document]) -> str:
    """Markdown of documents that are all of one kind."""
    if documents[0].kind == "accuracy":
        return "\n".join(map(page_of_answers, documents))
    return _page(title, [document.table for document in documents])


def page_of_answers(document: Document) -> str:
    """Markdown of what answers were worth, with the grids that stand below its table."""
    return accuracy_markdown(document.table, grids_below(document.run, document.answers))


def _page(title: str, tables: Sequence[Table]) -> str:
    """A table alone as it is; parts of a run below a common title, with what holds for all of them once at the end."""
    if len(tables) == 1 and not tables[0].part:
        return markdown(tables[0])
    return "\n".join(_lines(title, tables)).rstrip() + "\n"


def _lines(title: str, tables: Sequence[Table]) -> Iterator[str]:
    conditions = common_to([table.conditions for table in tables])
    methods = common_to([table.methods for table in tables])
    yield from (f"# {title}", "")
    for table in tables:
        own = replace(
            table,
            conditions=tuple(said for said in table.conditions if said not in conditions),
            methods=tuple(said for said in table.methods if said not in methods),
        )
        yield from (f"## {table.title}", "", *section(own), "")
    if conditions or methods:
        yield from ("## All parts", "", *listed("Conditions", conditions), *listed("Methods", methods))
