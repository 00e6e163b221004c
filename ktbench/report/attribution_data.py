"""Shares and interactions as CSV and JSON for other programs: factors at full precision, ids, reasons of gaps."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from ktbench.report.data import json_of_table
from ktbench.report.flat import csv_of, ends_of
from ktbench.report.tables import Table
from ktbench.results import Run
from ktbench.results.attribution import Attribution, Pair, Share
from ktbench.results.intervals import Interval, is_exact
from ktbench.spec.plain import to_plain


def attribution_csv_text(run: Run, attributions: Sequence[Attribution]) -> str:
    """A line for each share, each pair and each total; empty where a value is missing, `missing` says why."""
    lines = [{**one.settings, **line, **_origin(run, one)} for one in attributions for line in _lines(one)]
    return csv_of(lines)


def _lines(one: Attribution) -> Iterator[dict[str, Any]]:
    yield from map(_share, one.shares)
    yield {
        "kind": "total",
        "feature": one.whole,
        **ends_of("factor", one.total),
        "rounds": _rounds(one.total),
        "missing": one.why,
    }
    yield from map(_pair, one.pairs)


def _share(share: Share) -> dict[str, Any]:
    return {
        "kind": "share",
        "feature": share.feature,
        "other": None,
        "context": None,
        **ends_of("factor", share.factor),
        "rounds": _rounds(share.factor or share.last),
        **ends_of("part", share.part),
        **ends_of("first", share.first),
        **ends_of("last", share.last),
        "missing": "; ".join(f"{name}: {why}" for name, why in share.missing.items()),
    }


def _pair(pair: Pair) -> dict[str, Any]:
    return {
        "kind": "interaction",
        "feature": pair.one,
        "other": pair.other,
        "context": " ".join(pair.context),
        **ends_of("factor", pair.factor),
        "rounds": _rounds(pair.factor),
        "missing": pair.why,
    }


def _rounds(value: Interval | None) -> int | None:
    return None if value is None or is_exact(value) else value.n


def _origin(run: Run, one: Attribution) -> dict[str, Any]:
    return {
        "baseline": one.baseline,
        "orders": one.orders,
        "provenance": "simulated" if one.simulated else "measured",
        "run": run.header.run,
        "code_id": run.header.code_id,
        "env_id": None if one.simulated else run.header.env_id,
        "command": shlex.join(run.header.command),
    }


def attribution_json_text(run: Run, attributions: Sequence[Attribution], table: Table) -> str:
    """What the table says, and all fields of each group's shares and pairs."""
    return json_of_table(run, table, attributions=[to_plain(one) for one in attributions])
