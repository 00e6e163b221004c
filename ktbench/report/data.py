"""Rows as CSV and JSON for other programs: SI units, full precision, ids, and in JSON every sample."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from typing import Any

from ktbench.core.plain import to_plain
from ktbench.report.row import Row
from ktbench.report.tables import Table
from ktbench.stats.intervals import Interval
from ktbench.store import Run

_INTERVALS = ("step_s", "tokens_per_s", "speedup")


def csv_text(run: Run, rows: Sequence[Row]) -> str:
    """One line per row, empty where a value is missing (column `missing` says why); times in seconds."""
    lines = [_flat(run, row) for row in rows]
    out = io.StringIO()
    writer = csv.DictWriter(out, list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return out.getvalue()


def _flat(run: Run, row: Row) -> dict[str, Any]:
    share = row.roof and row.roof.share
    return {
        "label": row.label,
        "role": row.role,
        "outcome": row.outcome,
        "why": row.why,
        **row.settings,
        **{key: value for name in _INTERVALS for key, value in _ends(name, getattr(row, name)).items()},
        "verdict": row.speedup and row.verdict,
        **_ends("gain", row.gain and row.gain.ratio),
        "gain_over": row.gain and row.gain.over,
        "gain_verdict": row.gain and row.gain.verdict,
        "read_bytes_per_s": row.read_bytes_per_s,
        "flops_per_s": row.flops_per_s,
        **_ends("roof_share", share),
        "nearer_roof": row.roof and row.roof.limit,
        "peak_isa": row.roof and row.roof.peak_isa,
        "counted": row.proof,
        "error": row.error,
        "rounds": row.rounds,
        "samples": row.samples,
        "round_median_s": " ".join(f"{number}:{seconds!r}" for number, seconds in row.round_s.items()),
        "provenance": row.provenance,
        "missing": "; ".join(f"{name}: {why}" for name, why in row.missing.items()),
        "run": run.header.run,
        "spec_id": row.spec_id,
        "cell": row.cell,
        "code_id": " ".join(dict.fromkeys(record.code_id for record in row.records)) or None,
        "env_id": " ".join(dict.fromkeys(record.env_id for record in row.records)) or None,
        "command": row.command,
    }


def _ends(name: str, value: Interval | None) -> dict[str, float | None]:
    return {
        f"{name}_low": value and value.low,
        name: value and value.mid,
        f"{name}_high": value and value.high,
    }


def json_text(run: Run, rows: Sequence[Row], table: Table) -> str:
    """The plan's ids, conditions, methods and notes; of each row every field and every sample of its counting records."""
    header = to_plain(run.header)
    del header["cells"]
    content = {
        "header": header,
        "environments": [env for env in map(to_plain, run.environments) if env["env_id"] == run.header.env_id][-1:],
        "title": table.title,
        "conditions": table.conditions,
        "methods": table.methods,
        "notes": table.notes,
        "rows": [to_plain(row) | {"rounds": row.rounds, "samples": row.samples} for row in rows],
    }
    return json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
