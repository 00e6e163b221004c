"""A comparison as CSV and JSON for other programs, and its files."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ktbench.report.comparison_table import comparison_markdown
from ktbench.report.comparison_text import conditions, warnings
from ktbench.report.flat import csv_of
from ktbench.results import Run
from ktbench.results.comparison import ComparedCell, Comparison
from ktbench.results.intervals import Interval, is_exact
from ktbench.results.row import Row
from ktbench.spec.errors import RequestError
from ktbench.spec.plain import to_plain


def comparison_csv(comparison: Comparison) -> str:
    """One line for each cell of either run, `side` says of which; times in seconds, empty where a value is missing."""
    blank = dict.fromkeys(_FIELDS)
    lines = [blank | _cell(cell) for cell in comparison.cells]
    for side, names in (("A", comparison.only_before), ("B", comparison.only_after)):
        lines += [blank | {"cell": name, "side": side, "why": f"only in {side}"} for name in names]
    return csv_of(lines)


def comparison_json(comparison: Comparison) -> str:
    """Both runs, what was found for each cell, the answers, and what to doubt."""
    content = {
        "a": _run(comparison.before),
        "b": _run(comparison.after),
        "tolerance": comparison.tolerance,
        "recorded_in_turns": comparison.in_turns,
        "verdicts": {str(verdict): count for verdict, count in sorted(comparison.verdicts.items())},
        "cells": [_cell(cell) for cell in comparison.cells],
        "only_in_a": comparison.only_before,
        "only_in_b": comparison.only_after,
        "answers": [to_plain(one) for one in comparison.answers],
        "warnings": [*warnings(comparison)],
        "conditions": [*conditions(comparison)],
    }
    return json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def write_comparison(comparison: Comparison) -> list[Path]:
    """Write `compare-<A>.md`, `.csv` and `.json` into the report folder of B and return their paths.

    Raises RequestError where nothing can be written there.
    """
    folder, name = comparison.after.folder / "report", f"compare-{comparison.before.folder.name}"
    texts = {folder / f"{name}.{ending}": text(comparison) for ending, text in _TEXTS.items()}
    try:
        folder.mkdir(exist_ok=True)
        for path, text in texts.items():
            path.write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise RequestError(f"compare: nothing can be written to {folder}: {error.strerror}") from None
    return [*texts]


_TEXTS: Mapping[str, Callable[[Comparison], str]] = {
    "md": comparison_markdown,
    "csv": comparison_csv,
    "json": comparison_json,
}
_FIELDS = (
    "cell",
    "side",
    "role",
    "spec_id",
    "provenance",
    *(f"{side}_{what}" for side in "ab" for what in ("outcome", "step_s", "turns")),
    *("speedup_low", "speedup", "speedup_high", "coverage", "method", "verdict"),
    *("roof_ratio", "roof_limit", "why"),
)


def _cell(cell: ComparedCell) -> dict[str, Any]:
    held, roof = cell.held, cell.roof
    return {
        "cell": cell.name,
        "side": "both",
        "role": cell.after.role,
        "spec_id": cell.after.spec_id,
        "provenance": cell.after.provenance or cell.before.provenance,
        **_side("a", cell.before, held.turns[0] if held else None),
        **_side("b", cell.after, held.turns[1] if held else None),
        **_speedup(held.speedup if held else None),
        "method": held and held.method,
        "verdict": cell.verdict if held else None,
        "roof_ratio": roof and roof.ratio,
        "roof_limit": roof and roof.limit,
        "why": cell.why,
    }


def _side(name: str, row: Row, turns: int | None) -> dict[str, Any]:
    return {
        f"{name}_outcome": row.outcome,
        f"{name}_step_s": row.step_s and row.step_s.mid,
        f"{name}_turns": turns,
    }


def _speedup(value: Interval | None) -> dict[str, float | None]:
    """The ends of the interval are empty where it has none."""
    if value is None:
        return dict.fromkeys(("speedup_low", "speedup", "speedup_high", "coverage"))
    ends = (None, None, None) if is_exact(value) else (value.low, value.high, value.coverage)
    return {"speedup_low": ends[0], "speedup": value.mid, "speedup_high": ends[1], "coverage": ends[2]}


def _run(run: Run) -> dict[str, Any]:
    """What identifies a run, with what is known of its machine and software."""
    header = run.header
    ids = {"run": header.run, "created": header.created, "code_id": header.code_id, "env_id": header.env_id}
    return {**ids, "command": header.command, "environments": [to_plain(one) for one in run.environments]}
