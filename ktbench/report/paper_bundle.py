"""A folder to drop into a paper: short tables, figures, a file that inputs both, and one of conditions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from ktbench.report.documents import Document, titles_of
from ktbench.report.latex import figure_lines, short_table_lines, text_lines
from ktbench.report.markdown import common_to
from ktbench.report.text import DASH, extremes
from ktbench.results import Run
from ktbench.results.intervals import CONFIDENCE

_WHERE = r"\ktbench"
_MAIN = r"""\documentclass{article}
\usepackage[T1]{fontenc}
\usepackage[margin=2cm]{geometry}
\usepackage{booktabs,graphicx}
\begin{document}
\input{kit}
\input{conditions}
\end{document}
"""


def write_paper_bundle(folder: Path, run: Run, documents: Sequence[Document]) -> Iterator[Path]:
    """Write `kit.tex`, what it inputs, `conditions.tex` for an appendix, and `main.tex`, which compiles alone.

    Yields the paths.
    """
    # matplotlib takes a second to load: only for those who want the figures.
    from ktbench.report.figures.output import save

    folder.mkdir(exist_ok=True)
    lines = [*_head(run)]
    for document in documents:
        lines.append(rf"\input{{{_WHERE}/{document.name}}}")
        yield _write(folder / f"{document.name}.tex", short_table_lines(document.table.short()))
        if document.has_figure:
            figure = document.draw()
            lines += figure_lines(f"{_WHERE}/{document.table.figure_name}.pdf", _caption(document, figure.caption))
            yield from save(figure, folder, document.table.figure_name, caption=False)
    yield _write(folder / "kit.tex", lines)
    yield _write(folder / "conditions.tex", _conditions(documents))
    yield _write(folder / "main.tex", [_MAIN.rstrip()])


def _head(run: Run) -> Iterator[str]:
    yield f"% Tables and figures of run {run.header.run}. In a paper: copy this folder, then"
    yield r"%   \usepackage{booktabs,graphicx} \newcommand{\ktbench}{path/to/kit} \input{\ktbench/kit}"
    yield r"% and in its appendix, for what the numbers were measured under: \input{\ktbench/conditions}"
    yield rf"\providecommand{{{_WHERE}}}{{.}}"


def _caption(document: Document, sentences: Sequence[str]) -> str:
    """What a figure says of itself, but for what the conditions say of all."""
    of_all = {*document.table.conditions, *document.table.methods}
    return " ".join([*(one for one in sentences if one not in of_all), origin_sentence(document)])


def _conditions(documents: Sequence[Document]) -> Iterator[str]:
    """What no caption has room for: sentences of all documents, those of each, why cells are empty, its commands."""
    texts = [(*one.table.conditions, *one.table.methods) for one in documents]
    if common := common_to(texts):
        yield from text_lines("Conditions.", common)
    for document, title, mine in zip(documents, titles_of(documents), texts, strict=True):
        own = [sentence for sentence in mine if sentence not in common]
        notes = [f"{note}." for note in (*document.table.notes, *document.table.remarks)]
        if own or notes:
            yield from text_lines(f"{title}.", [*own, *notes])
        yield from (f"% {name}: {command}" for name, command in document.table.commands)


def origin_sentence(document: Document) -> str:
    """How many rounds stand behind a figure, what its intervals are, and where its numbers are from."""
    counts = extremes(row.rounds for row in document.rows if row.timed and not row.simulated)
    rounds = f" over {' to '.join(map(str, counts))} rounds" if counts else ""
    spread = f" Intervals hold the median{rounds} with at least {CONFIDENCE:.0%}." if counts else ""
    header = document.run.header
    return f"Numbers: {' and '.join(document.origins) or DASH}.{spread} Run {header.run}, code {header.code_id}."


def _write(path: Path, lines: Sequence[str] | Iterator[str]) -> Path:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")
    return path
