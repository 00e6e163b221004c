"""Answers' worth as CSV and JSON for other programs: shares of 1 at full precision, ids, and the reasons of gaps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ktbench.report.data import json_of_table
from ktbench.report.flat import csv_of
from ktbench.report.tables import Table
from ktbench.results import Run
from ktbench.results.accuracy import AccuracyRow, Result, frontier_of
from ktbench.results.answers import PERPLEXITIES, Measure
from ktbench.results.scores import Change, Estimate
from ktbench.spec.plain import to_plain


def accuracy_csv_text(run: Run, rows: Sequence[AccuracyRow]) -> str:
    """A line for the average, each category, each task and each measure of each cell; empty where a value is missing,
    in the column `missing` stands why.
    """
    return csv_of([line for row in rows for line in _lines(run, row)])


def _lines(run: Run, row: AccuracyRow) -> Iterator[dict[str, Any]]:
    for content in _contents(row):
        yield {**_cell(row), **content, **_origin(run, row)}


def _contents(row: AccuracyRow) -> Iterator[dict[str, Any]]:
    """A cell that answered nothing has one line all the same, which says why."""
    yield from map(_of_result, row.results)
    yield from map(_of_measure, row.measures)
    if not row.results and not row.measures:
        yield {"missing": f"{row.outcome or 'not asked'}: {row.why}"}


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
        "asked": one.asked,
        **_of_change(one.change),
        "tokens": one.tokens,
        "longer": one.longer,
        "missing": "; ".join(f"{name}: {why}" for name, why in one.missing.items()),
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


def _origin(run: Run, row: AccuracyRow) -> dict[str, Any]:
    return {
        "evidence": row.evidence,
        "provenance": row.provenance,
        "run": run.header.run,
        "spec_id": row.row.spec_id,
        "cell": row.row.cell,
        "code_id": " ".join(dict.fromkeys(end.code_id for end in row.ends.values())),
        "env_id": " ".join(dict.fromkeys(end.env_id for end in row.ends.values())),
        "command": row.command,
    }


def accuracy_json_text(run: Run, rows: Sequence[AccuracyRow], table: Table) -> str:
    """The suite, conditions, methods and notes; of each row all results, measures and ends of its tasks."""
    return json_of_table(run, table, rows=[_plain(run, row, rows) for row in rows])


def _plain(run: Run, row: AccuracyRow, rows: Sequence[AccuracyRow]) -> dict[str, Any]:
    point = frontier_of(rows).get(row.row.cell)
    return {
        **_cell(row),
        "is_baseline": row.is_baseline,
        "is_pareto": point and point.is_pareto,
        "results": to_plain(row.results),
        "measures": [{**to_plain(one), "metric": _named(one)} for one in row.measures],
        "ungraded": [{"task": task, "why": why, "answers": count} for (task, why), count in row.ungraded.items()],
        "ends": to_plain(row.ends),
        **_origin(run, row),
    }
