"""Reads the published numbers that ship with ktbench: `reports/published`, one CSV file for each figure or table."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

from ktbench.resources import data_folder
from ktbench.results.lines import StoreError
from ktbench.spec.plain import from_plain
from ktbench.spec.published import Published
from ktbench.spec.record import Part

COLUMNS = tuple(field.name for field in fields(Published))


def published_names() -> tuple[str, ...]:
    """Figures and tables that ship, in the order of the alphabet."""
    return tuple(sorted(path.stem for path in _folder().glob("*.csv")))


def read_published(*figures: str) -> tuple[Published, ...]:
    """Numbers of the figures named, or of single panels of them (`fig14a`), each once, in the order of their files.

    Raises StoreError for a figure that does not ship, and with file and line for a row that cannot be read.
    """
    found: dict[str, tuple[str, Published]] = {}
    for name in dict.fromkeys(figures):
        for where, number in _numbers_of(name):
            if (before := found.setdefault(number.id, (where, number)))[0] != where:
                raise StoreError(f"{where}: id {number.id} is also in {before[0]}")
    return tuple(number for _, number in found.values())


def _numbers_of(name: str) -> list[tuple[str, Published]]:
    """`file:line` and number of every row of a figure or of a panel, whose name is the figure's and a letter."""
    known = published_names()
    figure = name if name in known else name[:-1]
    found = [] if figure not in known else [*read_file(_folder() / f"{figure}.csv")]
    shown = [(where, number) for where, number in found if name in (number.figure, number.panel)]
    if not shown:
        raise StoreError(f"published={name}: no such figure; allowed are {', '.join(known)}")
    return shown


def published_of(parts: Iterable[Part]) -> tuple[Published, ...]:
    """The numbers that the parts of a run show, each once. Raises StoreError as `read_published`."""
    return read_published(*(figure for part in parts for figure in part.published))


def read_file(path: Path) -> Iterator[tuple[str, Published]]:
    """(`file:line`, number) of every row of a CSV file. Raises StoreError with file and line for what it refuses."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = csv.reader(file, strict=True)
        try:
            _check_header(next(rows, []), f"{path}:1")
            for row in rows:
                yield f"{path}:{rows.line_num}", _number(row, path.stem)
        except StoreError:
            raise
        except (ValueError, csv.Error) as error:
            raise StoreError(f"{path}:{rows.line_num}: {error}") from None


def _check_header(header: list[str], where: str) -> None:
    if unknown := [name for name in header if name not in COLUMNS]:
        raise StoreError(f"{where}: unknown column {unknown[0]!r}; columns are {', '.join(COLUMNS)}")
    if tuple(header) != COLUMNS:
        raise StoreError(f"{where}: columns must be, in this order, {', '.join(COLUMNS)}")


def _number(row: list[str], figure: str) -> Published:
    if len(row) != len(COLUMNS):
        raise ValueError(f"{len(row)} values in {len(COLUMNS)} columns")
    content: dict[str, Any] = dict(zip(COLUMNS, row, strict=True))
    if content["figure"] != figure:
        raise ValueError(f"figure={content['figure']!r}: this is the file of {figure}")
    content["tokens"] = _parsed(int, "tokens", content["tokens"]) if content["tokens"] else None
    content["batch"] = _parsed(int, "batch", content["batch"])
    content["value"] = _parsed(float, "value", content["value"])
    return from_plain(content, Published)


def _parsed(kind: type[int] | type[float], column: str, text: str) -> int | float:
    try:
        return kind(text)
    except ValueError:
        whole = "a whole number" if kind is int else "a number"
        raise ValueError(f"{column}={text!r}: must be {whole}") from None


def _folder() -> Path:
    return data_folder("reports") / "published"
