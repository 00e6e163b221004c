"""Rows and tables as CSV and JSON for other programs: SI units, full precision, ids, and in JSON every sample."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from ktbench.report.accuracy_table import MEASURES, SCORES
from ktbench.report.equal_cells import equal_cells_content
from ktbench.report.table import Table
from ktbench.results import Run
from ktbench.results.accuracy import AccuracyRow, frontier_of
from ktbench.results.quantities.columns import cells_of_line, columns_of, origin_of, plain_of
from ktbench.results.quantities.disturbances import rounds_disturbed
from ktbench.results.row import Row, groups_of
from ktbench.results.run import environments_of
from ktbench.results.settings import Setting, varying
from ktbench.spec.errors import printable
from ktbench.spec.record import Record
from ktbench.spec.wire import to_plain


def csv_of(lines: Sequence[Mapping[str, Any]]) -> str:
    """CSV with a column for each key of any line, in the order in which keys come; what a line lacks is empty.

    A text that a spreadsheet would take for a formula gets an apostrophe in front, which spreadsheets do not show;
    control characters are escapes.
    """
    out = io.StringIO()
    columns = list(dict.fromkeys(key for line in lines for key in line))
    writer = csv.DictWriter(out, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: _spreadsheet_safe(value) for key, value in line.items()} for line in lines)
    return out.getvalue()


def _spreadsheet_safe(value: Any) -> Any:
    """Labels begin with + and are left: no spreadsheet finds a name such as v."""
    if not isinstance(value, str):
        return value
    return printable(f"'{value}" if value.startswith(("=", "@", "\t")) else value)


def json_of_table(run: Run, table: Table, **lines: Sequence[dict[str, Any]]) -> str:
    """The plan of a run, its machines, the texts around a table, and the plain content of its lines by a name."""
    header = to_plain(run.header)
    del header["cells"]
    latest = {environment.env_id: environment for environment in environments_of(run)}
    content = {
        "header": header,
        "environments": [to_plain(environment) for environment in latest.values()],
        "title": table.title,
        "conditions": table.conditions,
        "methods": table.methods,
        "notes": table.notes,
        **lines,
    }
    return json_of(content)


def json_of(content: Any) -> str:
    """Plain content as JSON of many lines. Raises ValueError for a number that is not finite."""
    # Indented by `json` itself it takes ten times as long.
    return msgspec.json.format(json.dumps(content, ensure_ascii=False, allow_nan=False), indent=1) + "\n"


def csv_text(run: Run, rows: Sequence[Row]) -> str:
    """One line per row, empty where a value is missing (column `missing` has the reason); times in seconds."""
    return csv_of([columns_of(run, row) for row in rows])


def samples_csv_text(rows: Sequence[Row]) -> str:
    """One line per timed step of each round; times in seconds."""
    return csv_of([*sample_lines(rows)])


def sample_lines(rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    """The timed steps of rows, by column: the settings are those that vary."""
    varied = varying([group[0].settings for group in groups_of(rows)])
    for row in rows:
        settings, disturbed = {key: row.settings[key] for key in varied}, rounds_disturbed(row)
        for record in row.records:
            trial = _trial(row, record, settings)
            trial["disturbed"] = record.round in disturbed if record.system_metrics else None
            yield from ({**trial, "step": n, "step_s": seconds} for n, seconds in enumerate(record.samples_s))


def _trial(row: Row, record: Record, settings: Mapping[str, Setting]) -> dict[str, Any]:
    layout = row.core_layouts.get(record.round)
    return {
        "part": row.part,
        "label": row.label,
        "role": row.role,
        "system": row.spec.system,
        "precision": row.spec.precision,
        **settings,
        "provenance": record.provenance,
        "cell": row.cell,
        "code_id": record.code_id,
        "env_id": record.env_id,
        "worker": record.worker_session,
        "started": record.started,
        "core_layout": None if layout is None else str(layout),
        "outcome": str(record.outcome),
        "round": record.round,
    }


def _without(content: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in content.items() if name != key}


def json_text(run: Run, rows: Sequence[Row], table: Table) -> str:
    """The plan's ids, conditions, methods and notes; of each row all fields and all samples of its counting records."""
    equal = equal_cells_content(rows)
    return json_of_table(run, table, rows=[*map(plain_of, rows)], **({"equal_cells": equal} if equal else {}))


def accuracy_csv_text(run: Run, rows: Sequence[AccuracyRow]) -> str:
    """A line for the average, each category, each task and each measure of each cell; empty where a value is missing,
    in the column `missing` stands why.
    """
    return csv_of([line for row in rows for line in score_lines(run, row)])


def score_lines(run: Run, row: AccuracyRow) -> Iterator[dict[str, Any]]:
    """The lines that the CSV has of the answers of a cell, by column."""
    for content in _contents(row):
        yield {**_cell(row), **content, **_origin_of_answers(run, row)}


def _contents(row: AccuracyRow) -> Iterator[dict[str, Any]]:
    """A cell that answered nothing has one line with the reason."""
    yield from (cells_of_line(SCORES, one) for one in row.results)
    yield from (cells_of_line(MEASURES, one) for one in row.measures)
    if not row.results and not row.measures:
        yield {"missing": f"{row.outcome or 'not evaluated'}: {row.why}"}


def _cell(row: AccuracyRow) -> dict[str, Any]:
    speed = row.row.tokens_per_s
    return {
        "label": row.row.label,
        "outcome": row.outcome,
        "why": row.why,
        **row.row.settings,
        "precision": row.row.spec.precision,
        "device_precision": row.row.spec.device_precision,
        "tokens_per_s": None if speed is None else speed.mid,
    }


def _origin_of_answers(run: Run, row: AccuracyRow) -> dict[str, Any]:
    origin = origin_of(run, row.row, row.ends.values())
    return {"evidence": row.evidence, "provenance": row.provenance, **origin, "command": row.command}


def accuracy_json_text(run: Run, rows: Sequence[AccuracyRow], table: Table) -> str:
    """The suite, conditions, methods and notes; of each row all results, measures and ends of its tasks."""
    return json_of_table(run, table, rows=[_plain(run, row, rows) for row in rows])


def _plain(run: Run, row: AccuracyRow, rows: Sequence[AccuracyRow]) -> dict[str, Any]:
    point = frontier_of(rows).get(row.row.cell)
    return {
        **_cell(row),
        "is_baseline": row.is_baseline,
        "is_pareto": point and point.is_pareto,
        "pareto": point and point.standing,
        "results": to_plain(row.results),
        "measures": [{**to_plain(one), "metric": cells_of_line(MEASURES, one)["metric"]} for one in row.measures],
        "ungraded": [{"task": task, "why": why, "answers": count} for (task, why), count in row.ungraded.items()],
        "ends": {task: _without(to_plain(end), "lm_eval") for task, end in row.ends.items()},
        **_origin_of_answers(run, row),
    }
