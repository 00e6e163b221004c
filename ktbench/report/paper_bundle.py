"""A folder to drop into a paper: short tables, figures, a file that inputs both, and one of conditions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ktbench.files import write_whole
from ktbench.report.documents import Document, titles_of
from ktbench.report.latex import latex_of
from ktbench.report.markdown import common_to
from ktbench.report.table import Column, Table
from ktbench.report.text import extremes
from ktbench.results import Run
from ktbench.results.intervals import CONFIDENCE
from ktbench.results.quantities.text import DASH, NO_ENDS, dashed
from ktbench.results.row import comparable
from ktbench.spec.record import Outcome


def write_paper_bundle(folder: Path, run: Run, documents: Sequence[Document]) -> Iterator[Path]:
    """Write `kit.tex`, what it inputs, `conditions.tex` for an appendix, and `main.tex`, which compiles alone.

    Yields the paths.
    """
    # matplotlib takes a second to load: only for those who want the figures.
    from ktbench.report.figures.output import save

    captions = []
    for document in documents:
        yield _write(folder / f"{document.name}.tex", "short_table", table=_short(document))
        figure = document.figure if document.has_figure else None
        captions.append(_caption(document, figure.caption if figure else ()))
        if figure:
            yield from save(figure, folder, document.table.figure_name, caption=False)
    yield _write(folder / "kit.tex", "kit", run=run.header.run, documents=[*zip(documents, captions, strict=True)])
    texts = [(*one.table.conditions, *one.table.methods) for one in documents]
    common = common_to(texts)
    own = (_own(document, text, common) for document, text in zip(documents, texts, strict=True))
    commands = (one.table.commands for one in documents)
    each = [*zip(titles_of(documents), own, commands, strict=True)]
    yield _write(folder / "conditions.tex", "conditions", common=common, documents=each)
    yield _write(folder / "main.tex", "main")


def _short(document: Document) -> Table:
    """The table of its key columns, and of speeds how many rounds each could be compared in."""
    short = document.table.short()
    if document.kind != "table" or all(comparable(row) is None for row in document.rows):
        return short

    def counted(role: str, lines: Sequence[tuple[str, ...]]) -> tuple[tuple[str, ...], ...]:
        counts = (comparable(row) for row in document.rows if row.role == role)
        return tuple((*line, dashed(count, "{:g}".format)) for line, count in zip(lines, counts, strict=False))

    rounds = Column[Any]("comparable rounds", str, key=True)
    cells, controls = counted("arm", short.cells), counted("control", short.control_cells)
    return replace(short, columns=(*short.columns, rounds), cells=cells, control_cells=controls)


def _caption(document: Document, sentences: Sequence[str]) -> str:
    """What a figure says of itself, but for what the conditions say of all."""
    of_all = {*document.table.conditions, *document.table.methods}
    return " ".join([*(one for one in sentences if one not in of_all), origin_sentence(document)])


def _own(document: Document, sentences: Sequence[str], common: Sequence[str]) -> list[str]:
    """Sentences about a document alone, with its notes and remarks."""
    notes = (f"{note}." for note in (*document.table.notes, *document.table.remarks))
    return [*(one for one in sentences if one not in common), *notes]


def origin_sentence(document: Document) -> str:
    """How many rounds stand behind a figure, what its intervals are, and where its numbers are from."""
    counts = extremes(found for row in document.rows if (found := comparable(row)) is not None)
    rounds = f"{' to '.join(f'{one:g}' for one in counts)} comparable rounds"
    spread = f" Intervals hold the median over {rounds} with at least {CONFIDENCE:.0%}." if counts else ""
    if any(value and not value.sound for row in document.rows for value in (row.step_s, row.speedup)):
        spread += f" {NO_ENDS}: too few rounds for an interval."
    if any(one.outcome is Outcome.NOISY for one in document.rows):
        spread += f" ~: {Outcome.NOISY}, its interval did not close."
    header = document.run.header
    return f"Numbers: {' and '.join(document.origins) or DASH}.{spread} Run {header.run}, code {header.code_id}."


def _write(path: Path, template: str, **values: Any) -> Path:
    return write_whole(path, latex_of(template, **values))
