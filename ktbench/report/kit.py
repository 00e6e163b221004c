"""A folder to drop into a paper: tables as LaTeX, figures, and one file that inputs them with their captions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from ktbench.report.documents import Document
from ktbench.report.latex import figure_lines, table_lines
from ktbench.report.text import DASH
from ktbench.stats.intervals import CONFIDENCE
from ktbench.store import Run

_WHERE = r"\ktbench"
_MAIN = r"""\documentclass{article}
\usepackage[T1]{fontenc}
\usepackage[margin=2cm]{geometry}
\usepackage{booktabs,graphicx}
\begin{document}
\input{kit}
\end{document}
"""


def write_kit(folder: Path, run: Run, documents: Sequence[Document]) -> Iterator[Path]:
    """Write `kit.tex`, what it inputs, and `main.tex`, which compiles alone; yields the paths."""
    # matplotlib takes a second to load: only for those who want the figures.
    from ktbench.report.figure import save

    folder.mkdir(exist_ok=True)
    for document in documents:
        yield _write(folder / f"{document.name}.tex", table_lines(document.table))
        if document.has_figure:
            yield from save(document.draw(), folder, document.table.figure_name)
    yield _write(folder / "kit.tex", _lines(run, documents))
    yield _write(folder / "main.tex", [_MAIN.rstrip()])


def _lines(run: Run, documents: Sequence[Document]) -> Iterator[str]:
    yield f"% Tables and figures of run {run.header.run}. In a paper: copy this folder, then"
    yield r"%   \usepackage{booktabs,graphicx} \newcommand{\ktbench}{path/to/kit} \input{\ktbench/kit}"
    yield rf"\providecommand{{{_WHERE}}}{{.}}"
    for document in documents:
        yield rf"\input{{{_WHERE}/{document.name}}}"
        if document.has_figure:
            said = [document.table.figure_caption, *document.table.conditions, origin_sentence(document)]
            yield from figure_lines(f"{_WHERE}/{document.table.figure_name}.pdf", " ".join(said))


def origin_sentence(document: Document) -> str:
    """How many rounds stand behind a figure, what its intervals are, and where its numbers are from."""
    rows = [row for row in document.rows if row.timed]
    origins = dict.fromkeys(row.provenance for row in rows if row.provenance)
    counts = sorted({row.rounds for row in rows if not row.simulated})
    rounds = f" over {' to '.join(map(str, dict.fromkeys((counts[0], counts[-1]))))} rounds" if counts else ""
    spread = f" Intervals hold the median{rounds} with at least {CONFIDENCE:.0%}." if counts else ""
    header = document.run.header
    return f"Numbers: {' and '.join(origins) or DASH}.{spread} Run {header.run}, code {header.code_id}."


def _write(path: Path, lines: Sequence[str] | Iterator[str]) -> Path:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")
    return path
