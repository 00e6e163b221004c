"""What a run's table and data files say."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

from ktbench.report.data import csv_text, json_text
from ktbench.report.speed_table import table_of
from ktbench.report.table import Table
from ktbench.results import Run
from ktbench.results.row import Row
from ktbench.results.rows import rows_of


def table(run: Run) -> Table:
    return table_of(run, rows_of(run))


def headings(found: Table) -> list[str]:
    return [column.heading for column in found.columns]


def column(found: Table, heading: str) -> list[str]:
    at = headings(found).index(heading)
    return [cells[at] for cells in found.cells]


def by_arm(found: Table, heading: str) -> dict[str, str]:
    """A column by the arm of its lines."""
    return dict(zip(column(found, "arm"), column(found, heading), strict=True))


def row(run: Run, label: str, tokens: float | None = None) -> Row:
    """The row of an arm, of a layer the one with so many tokens per expert."""
    found = (row for row in rows_of(run) if row.label == label)
    return next(row for row in found if tokens in (None, row.spec.tokens_per_expert))


def csv_lines(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def csv_of_run(run: Run) -> list[dict[str, str]]:
    return csv_lines(csv_text(run, rows_of(run)))


def json_of_run(run: Run) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(json_text(run, rows_of(run), table(run)))
    return content
