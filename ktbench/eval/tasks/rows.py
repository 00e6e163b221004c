"""Local files of questions → rows, each checked: errors name file and line."""

from __future__ import annotations

import csv
import gzip
import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

Row = dict[str, Any]
Check = Callable[[Row], object]
Fields = Mapping[str, type]


class Rows(list[Row]):
    """The rows of one split, with the parts of a dataset that lm-eval needs."""

    @property
    def features(self) -> Row:
        """The fields, as keys."""
        return dict.fromkeys(self[0]) if self else {}


Splits = Mapping[str, Rows]


def find_folder(data_dir: str, name: str, files: Sequence[str]) -> Path:
    """`data_dir`, or the folder `name` in it: the first that contains all the files. Raises ValueError."""
    for folder in (Path(data_dir), Path(data_dir) / name):
        if all((folder / file).is_file() for file in files):
            return folder
    raise ValueError(f"data_dir={data_dir}: no {name} here; wanted are {' and '.join(files)}, there or in {name}/")


def find_file(data_dir: str, name: str, files: Sequence[str]) -> Path:
    """The first of the files in `data_dir` or in its folder `name`. Raises ValueError."""
    paths = [folder / file for folder in (Path(data_dir), Path(data_dir) / name) for file in files]
    if existing := next((path for path in paths if path.is_file()), None):
        return existing
    raise ValueError(f"data_dir={data_dir}: no {name} here; wanted is {' or '.join(files)}, there or in {name}/")


def json_lines(path: Path, fields: Fields, check: Check = lambda row: None) -> Rows:
    """The JSON objects of a file, one per line; `.gz` is unpacked.

    Each must have the `fields` with values of these types; `check` raises ValueError for other errors. Raises
    ValueError as `file:line: what`, and for a file without rows.
    """
    rows = Rows()
    for number, line in numbered_lines(path):
        with at(path, number):
            rows.append(read_object(line.decode()))
            check_row(rows[-1], fields, check)
    return some(rows, path)


def json_list(path: Path, fields: Fields, check: Check = lambda row: None) -> Rows:
    """The JSON objects of a file that is one list, checked like those of `json_lines`.

    Raises ValueError as `file:line: what` for invalid JSON, as `file: row number: what` for a malformed row.
    """
    with at(path, 1):
        text = path.read_bytes().decode()
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}:{error.lineno}: is no JSON: {error.msg}") from None
    except RecursionError:
        raise ValueError(f"{path}: is no JSON: nested too deeply") from None
    if not isinstance(content, list):
        raise ValueError(f"{path}: expected a JSON list, got {type(content).__name__}")
    for number, row in enumerate(content, start=1):
        try:
            check_row(require_object(row), fields, check)
        except ValueError as error:
            raise ValueError(f"{path}: row {number}: {error}") from None
    return some(Rows(content), path)


def csv_rows(path: Path, fields: Sequence[str], check: Check = lambda row: None) -> Rows:
    """The rows of a CSV file whose first line names these fields, all text; a field may contain line breaks.

    Raises ValueError as `file:line: what`, with the line on which the row begins, and for a file without rows.
    """
    rows = Rows()
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.reader(file, strict=True)
        filled = filter(None, reader)  # without blank lines
        with at(path, 1):
            if next(filled, None) != list(fields):
                raise ValueError(f"the first line must be {','.join(fields)}")
        while True:
            with at(path, reader.line_num + 1):
                if (cells := next(filled, None)) is None:
                    break
                if len(cells) != len(fields):
                    raise ValueError(f"expected {len(fields)} fields, got {len(cells)}")
                rows.append(dict(zip(fields, cells, strict=True)))
                check(rows[-1])
    return some(rows, path)


def check_row(row: Row, fields: Fields, check: Check) -> None:
    """Raises ValueError if a field is missing or has another type, and what `check` raises."""
    for name, kind in fields.items():
        if name not in row:
            raise ValueError(f"no field {name}; wanted are {', '.join(fields)}")
        if not isinstance(row[name], kind) or (kind is int and isinstance(row[name], bool)):
            raise ValueError(f"{name}: expected {kind.__name__}, got {type(row[name]).__name__}")
    check(row)


def some(rows: Rows, path: Path) -> Rows:
    """The rows. Raises ValueError if there are none."""
    if not rows:
        raise ValueError(f"{path}: holds no questions")
    return rows


@contextmanager
def at(path: Path, line: int) -> Iterator[None]:
    """Turns errors of the reader, and ValueErrors, into a ValueError that begins with file and line."""
    try:
        yield
    except UnicodeDecodeError:
        raise ValueError(f"{path}:{line}: is not UTF-8 text") from None
    except csv.Error as error:
        raise ValueError(f"{path}:{line}: is no CSV: {error}") from None
    except ValueError as error:
        raise ValueError(f"{path}:{line}: {error}") from None


def numbered_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Lines that are not blank, with their numbers."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            yield from ((number, line) for number, line in enumerate(file, start=1) if line.strip())
    except (gzip.BadGzipFile, EOFError, zlib.error):
        raise ValueError(f"{path}: is no whole gzip file") from None


def read_object(text: str | bytes) -> Row:
    """The JSON object of a text. Raises ValueError."""
    try:
        row = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"is no JSON: {error.msg} at column {error.colno}") from None
    except RecursionError:
        raise ValueError("is no JSON: nested too deeply") from None
    return require_object(row)


def require_object(value: object) -> Row:
    """The value. Raises ValueError if it is not a JSON object."""
    if not isinstance(value, dict):
        raise ValueError(f"expected a JSON object, got {type(value).__name__}")
    return value
