"""Rows and tables as CSV and JSON for other programs: SI units, full precision, ids, and in JSON every sample."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

import msgspec

from ktbench.report.equal_cells import equal_cells_content
from ktbench.report.health import disturbed_rounds
from ktbench.report.table import Table
from ktbench.results import Run
from ktbench.results.accuracy import AccuracyRow, Result, accuracy_rows, frontier_of
from ktbench.results.answers import PERPLEXITIES, Measure
from ktbench.results.intervals import Interval, exact
from ktbench.results.row import Row, comparable, groups_of
from ktbench.results.rows import rows_of
from ktbench.results.run import environments_of, parts_of
from ktbench.results.scores import Change, Estimate
from ktbench.results.serving.latency import SHARES
from ktbench.results.settings import Setting, varying
from ktbench.spec.errors import printable
from ktbench.spec.record import Record, TaskResult
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


def ends_of(name: str, value: Interval | Estimate | None) -> dict[str, float | None]:
    """Columns `<name>_low`, `<name>`, `<name>_high`: of a value without an interval without ends, of None all empty."""
    names = (f"{name}_low", name, f"{name}_high")
    none = value is None or (isinstance(value, Interval) and not value.has_ends)
    ends = (None, None) if value is None or none else (value.low, value.high)
    return dict(zip(names, (ends[0], None if value is None else value.mid, ends[1]), strict=True))


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


# Between the entries of a cell that is a list of texts, none of which contains it.
SEPARATOR = " | "


def list_text(entries: Iterable[str]) -> str:
    """Texts in one cell, each once, which `str.split(" | ")` takes apart."""
    return SEPARATOR.join(dict.fromkeys(entry.replace("|", "/") for entry in entries))


def pairs_text(values: Mapping[str, object]) -> str:
    """A list of values by name in one cell, such as the reasons why others are missing."""
    return list_text(f"{name}: {value}" for name, value in values.items())


def csv_text(run: Run, rows: Sequence[Row]) -> str:
    """One line per row, empty where a value is missing (column `missing` has the reason); times in seconds."""
    return csv_of([columns_of(run, row) for row in rows])


# Of cells that served requests; the columns are there where a run has such.
_LATENCIES = {"ttft": "ttft_s", "itl": "itl_s", "end_to_end": "end_to_end_s"}
# Columns of rows that trained.
_OF_TRAINING: dict[str, str | Callable[[Row], Any]] = {
    name: f"parts.{name}" for name in ("forward_s", "backward_s", "optimiser_s")
}
# Columns of those that learned from examples.
_OF_LEARNING: dict[str, str | Callable[[Row], Any]] = {
    "first_loss": lambda row: row.records[-1].parts and row.records[-1].parts.losses[0],
    "last_loss": lambda row: row.records[-1].parts and row.records[-1].parts.losses[-1],
    **{f"held_out_loss{end}": f"learning.{when}.loss" for end, when in (("_before", "before"), ("", "after"))},
    **{f"exact{end}": f"learning.{when}.exact" for end, when in (("_before", "before"), ("", "after"))},
}
_OF_SERVING = {
    **{f"{name}_{share}_s": f"serving.{key}.{share}" for name, key in _LATENCIES.items() for share in SHARES},
    **{name: f"serving.{name}" for name in ("output_per_s", "total_per_s", "user_per_s")},
    **{name: f"serving.{name}" for name in ("goodput", "kept", "waiting", "most_waiting", "cached")},
}
# Columns of a row and where below it their values are; where something on the way is None, they are empty.
_NAMES = {"label": "label", "role": "role", "system": "spec.system", "part": "part", "outcome": "outcome", "why": "why"}
_NUMBERS = {"precision": "spec.precision", "dtype": "spec.dtype", "tokens_per_expert": "spec.tokens_per_expert"}
_VALUES: Mapping[str, str | Callable[[Row], Any]] = {
    "step_s": "step_s",
    "tokens_per_s": "tokens_per_s",
    "of_layers": lambda row: row.spec.model.full_layers if row.spec.model.is_slice else None,
    "whole_tokens_per_s": "whole_tokens_per_s",
    "speedup": lambda row: exact(1.0) if row.is_baseline and row.timed else row.speedup,
    "comparable_rounds": comparable,
    "verdict": lambda row: None if row.speedup is None else row.verdict,
    "gain": "gain.ratio",
    "gain_over": "gain.over",
    "gain_verdict": "gain.verdict",
    "read_bytes_per_s": "read_bytes_per_s",
    "flops_per_s": "flops_per_s",
    "roof_share": "roof.share",
    "nearer_roof": "roof.limit",
    "peak_isa": "roof.peak_isa",
    "peak_dtype": "roof.peak_dtype",
    "host_busy": "roles.host_busy",
    "device_busy": "roles.device_busy",
    "overlap": "roles.overlap",
    "evidence": "evidence",
    "error": "error",
    "top1_agreement": "agreement.top1",
    "kl_nats": "agreement.kl_nats",
    "agreement_against": "agreement.against",
    "agreement_positions": "agreement.positions",
    "unproven": "unproven",
    **_OF_SERVING,
    **_OF_TRAINING,
    **_OF_LEARNING,
    "joules_per_token": "energy.joules_per_token",
    "watts": "energy.watts.mid",
    "meters": lambda row: None if row.energy is None else list_text(row.energy.meters),
    "peak_memory_bytes": "peak.process_bytes",
    "disturbed_rounds": lambda row: len(_disturbed(row)) if any(record.conduct for record in row.records) else None,
    "rounds": "rounds",
    "samples": "samples",
    "missing": lambda row: pairs_text(row.missing),
    "remarks": lambda row: list_text(row.remarks),
    "provenance": "provenance",
}
# Those that are intervals have columns for their ends beside them.
_INTERVALS = {
    *("step_s", "tokens_per_s", "whole_tokens_per_s", "speedup", "gain", "roof_share"),
    *("host_busy", "device_busy", "overlap", "joules_per_token"),
    *_OF_SERVING,
    *_OF_TRAINING,
}


def columns_of(run: Run, row: Row) -> dict[str, Any]:
    """Everything that the CSV has of a row, by column; None where a value is missing."""
    left_out = {*(() if row.is_serving else _OF_SERVING), *(() if row.is_training else _OF_TRAINING)}
    left_out |= {*(() if row.learning else _OF_LEARNING)}
    values = {name: path for name, path in _VALUES.items() if name not in left_out}
    machine = {} if row.spec.machine is None else {"machine": row.spec.machine.name}  # as requests name it
    settings = {**row.settings, **machine}
    columns = {**_columns(row, _NAMES), **settings, **_columns(row, _NUMBERS), **_columns(row, values)}
    return {**columns, **_peaks_by_place(row), **_origin(run, row, row.records), "command": row.command}


def _peaks_by_place(row: Row) -> dict[str, int]:
    """Columns `peak_memory_node_0_bytes`, `peak_memory_cuda_0_bytes` … of the memories that were sampled."""
    held = {} if row.peak is None else row.peak.node_bytes | row.peak.device_bytes
    return {f"peak_memory_{re.sub('[^a-z0-9]+', '_', place)}_bytes": size for place, size in held.items()}


def _disturbed(row: Row) -> set[int]:
    return {number for rounds in disturbed_rounds(row).values() for number in rounds}


def samples_csv_text(rows: Sequence[Row]) -> str:
    """One line per timed step of each round; times in seconds."""
    return csv_of([*sample_lines(rows)])


def sample_lines(rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    """The timed steps of rows, by column: the settings are those that vary."""
    varied = varying([group[0].settings for group in groups_of(rows)])
    for row in rows:
        settings, disturbed = {key: row.settings[key] for key in varied}, _disturbed(row)
        for record in row.records:
            trial = _trial(row, record, settings)
            trial["disturbed"] = record.round in disturbed if record.conduct else None
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
        "worker": record.sitting,
        "started": record.started,
        "core_layout": None if layout is None else str(layout),
        "outcome": str(record.outcome),
        "round": record.round,
    }


def _without(content: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in content.items() if name != key}


def _field(value: Any, name: str) -> Any:
    return None if value is None else getattr(value, name)


def _columns(row: Row, paths: Mapping[str, str | Callable[[Row], Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, path in paths.items():
        value: Any = path(row) if callable(path) else reduce(_field, path.split("."), row)
        found |= ends_of(name, value) if name in _INTERVALS else {name: value}
    return found


def _origin(run: Run, row: Row, facts: Iterable[Record | TaskResult]) -> dict[str, Any]:
    """Which run, code and machines `facts` of a row are from."""
    facts = [*facts]
    return {
        "run": run.header.run,
        "spec_id": row.spec_id,
        "cell": row.cell,
        "code_id": list_text(fact.code_id for fact in facts),
        "env_id": list_text(fact.env_id for fact in facts),
    }


def json_text(run: Run, rows: Sequence[Row], table: Table) -> str:
    """The plan's ids, conditions, methods and notes; of each row all fields and all samples of its counting records."""
    equal = equal_cells_content(rows)
    return json_of_table(run, table, rows=[*map(_plain_row, rows)], **({"equal_cells": equal} if equal else {}))


def _plain_row(row: Row) -> dict[str, Any]:
    """A row without its spec, which `settings`, `features` and `command` hold in fewer words."""
    content = to_plain(row)
    del content["spec"]
    return {
        **content,
        "system": row.spec.system,
        **_columns(row, _NUMBERS),
        "rounds": row.rounds,
        "samples": row.samples,
        "remarks": row.remarks,
        "disturbed": disturbed_rounds(row),
    }


def json_lines(run: Run, files: Iterable[Path]) -> Iterator[str]:
    """A run as JSON lines: by `line` one for each `row`, one for each `score` of answers, then the `run` itself."""
    found = [{"line": "row", **columns_of(run, row)} for row in rows_of(run)]
    for part in parts_of(run) if run.header.suite else ():
        scores = (line for row in accuracy_rows(part) for line in score_lines(part, row))
        found += [{"line": "score", **score} for score in scores]
    header = run.header
    found.append({"line": "run", "run": header.run, "title": header.title, "files": [str(path) for path in files]})
    yield from (json.dumps(line, ensure_ascii=False, allow_nan=False) for line in found)


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
    yield from map(_of_result, row.results)
    yield from map(_of_measure, row.measures)
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


def _of_result(one: Result) -> dict[str, Any]:
    return {
        "kind": one.kind,
        "subject": one.subject,
        "metric": "score",
        **_ends("value", one.score),
        "graded": one.graded,
        "questions": one.questions,
        **_of_change(one.change),
        **_ends("kl_nats", one.kl),
        "tokens": one.tokens,
        "longer": one.longer,
        "missing": pairs_text(one.missing),
    }


def _of_change(change: Change | None) -> dict[str, Any]:
    flips = change and change.flips
    return {
        **_ends("difference", None if change is None else change.difference),
        **_ends("relative", None if change is None else change.relative),
        "compared": None if change is None else change.difference.n,
        "lost": flips and flips.lost,
        "gained": flips and flips.gained,
        "p": flips and flips.p,
        "verdict": change and change.verdict,
    }


def _of_measure(one: Measure) -> dict[str, Any]:
    return {
        "kind": "task",
        "subject": one.task,
        "metric": _named(one),
        **_ends("value", one.value),
        "graded": one.value.n,
        **_ends("relative", one.change),
    }


def _named(one: Measure) -> str:
    """What its value is: of a loss the perplexity."""
    return PERPLEXITIES.get(one.metric, one.metric)


def _ends(name: str, value: Estimate | None) -> dict[str, float | None]:
    """A value with its standard error and the ends of its interval."""
    names = (name, f"{name}_se", f"{name}_low", f"{name}_high")
    found = (None,) * 4 if value is None else (value.mid, value.se, value.low, value.high)
    return dict(zip(names, found, strict=True))


def _origin_of_answers(run: Run, row: AccuracyRow) -> dict[str, Any]:
    origin = _origin(run, row.row, row.ends.values())
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
        "measures": [{**to_plain(one), "metric": _named(one)} for one in row.measures],
        "ungraded": [{"task": task, "why": why, "answers": count} for (task, why), count in row.ungraded.items()],
        "ends": {task: _without(to_plain(end), "lm_eval") for task, end in row.ends.items()},
        **_origin_of_answers(run, row),
    }
