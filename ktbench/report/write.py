"""Writes the report of a run into its folder: the same store gives the same bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ktbench.core.errors import RequestError
from ktbench.report.data import csv_text, json_text
from ktbench.report.latex import latex
from ktbench.report.markdown import markdown
from ktbench.report.page import page
from ktbench.report.parts import parts_of
from ktbench.report.row import Row
from ktbench.report.rows import rows_of
from ktbench.report.tables import Table, named, table_of
from ktbench.store import Run


@dataclass(frozen=True, kw_only=True, slots=True)
class _Part:
    run: Run
    rows: tuple[Row, ...]
    table: Table


_TEXTS: dict[str, Callable[[_Part], str]] = {
    "md": lambda part: markdown(part.table),
    "csv": lambda part: csv_text(part.run, part.rows),
    "json": lambda part: json_text(part.run, part.rows, part.table),
    "tex": lambda part: latex(part.table),
}
FORMATS = (*_TEXTS, "figure")


def write_report(run: Run, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Write `table.md`, `.csv`, `.json`, `.tex` and `figure.pdf`, `.svg`, `.png` below `<run folder>/report/`.

    A run of several parts gets all of them for each part, `table-<part>.md` and so on, and `table.md` as the page that
    holds all tables. Returns the paths written. Raises RequestError for a format that is none of FORMATS, before
    anything is written.
    """
    unknown = [name for name in formats if name not in FORMATS]
    if unknown:
        raise RequestError(f"report format {unknown[0]!r}: allowed are {', '.join(FORMATS)}")
    parts = [_part(part) for part in parts_of(run)]
    folder = run.folder / "report"
    folder.mkdir(exist_ok=True)
    written = []
    for name in dict.fromkeys(formats):
        if name == "md" and parts[0].table.part:
            written.append(_write(folder / "table.md", page(run.header.title, [part.table for part in parts])))
        for part in parts:
            written += _files(folder, part, name)
    return written


def _part(run: Run) -> _Part:
    rows = rows_of(run)
    return _Part(run=run, rows=rows, table=table_of(run, rows))


def _files(folder: Path, part: _Part, name: str) -> Iterator[Path]:
    if name == "figure":
        # matplotlib takes a second to load: only for those who want the figure.
        from ktbench.report.figure import draw, save

        yield from save(draw(part.rows, part.table), folder, part.table.figure_name)
    else:
        yield _write(folder / f"{named('table', part.table.part)}.{name}", _TEXTS[name](part))


def _write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8", newline="\n")
    return path
