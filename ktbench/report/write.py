"""Writes the report of a run into its folder: the same store gives the same bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from ktbench.core.errors import RequestError
from ktbench.report.data import csv_text, json_text
from ktbench.report.latex import latex
from ktbench.report.markdown import markdown
from ktbench.report.row import Row
from ktbench.report.rows import rows_of
from ktbench.report.tables import Table, table_of
from ktbench.store import Run

_TEXTS: dict[str, Callable[[Run, Sequence[Row], Table], str]] = {
    "md": lambda run, rows, table: markdown(table),
    "csv": lambda run, rows, table: csv_text(run, rows),
    "json": json_text,
    "tex": lambda run, rows, table: latex(table),
}
FORMATS = (*_TEXTS, "figure")


def write_report(run: Run, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Write `table.md`, `.csv`, `.json`, `.tex` and `figure.pdf`, `.svg`, `.png` below `<run folder>/report/`.

    Returns the paths written. Raises RequestError for a format that is none of FORMATS, before anything is written.
    """
    unknown = [name for name in formats if name not in FORMATS]
    if unknown:
        raise RequestError(f"report format {unknown[0]!r}: allowed are {', '.join(FORMATS)}")
    rows = rows_of(run)
    table = table_of(run, rows)
    folder = run.folder / "report"
    folder.mkdir(exist_ok=True)
    written = []
    for name in dict.fromkeys(formats):
        if name == "figure":
            written += _figures(folder, rows, table)
        else:
            path = folder / f"table.{name}"
            path.write_text(_TEXTS[name](run, rows, table), encoding="utf-8", newline="\n")
            written.append(path)
    return written


def _figures(folder: Path, rows: Sequence[Row], table: Table) -> list[Path]:
    # matplotlib takes a second to load: only for those who want the figure.
    from ktbench.report.figure import draw, save

    return save(draw(rows, table), folder)
