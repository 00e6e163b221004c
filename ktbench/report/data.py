"""Rows as CSV and JSON for other programs: SI units, full precision, ids, and in JSON every sample."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from ktbench.report.flat import csv_of, ends_of
from ktbench.report.health import disturbed_rounds
from ktbench.report.tables import Table
from ktbench.results import Run
from ktbench.results.row import Row
from ktbench.results.run import environments_of
from ktbench.spec.plain import to_plain


def csv_text(run: Run, rows: Sequence[Row]) -> str:
    """One line per row, empty where a value is missing (column `missing` says why); times in seconds."""
    return csv_of([_flat(run, row) for row in rows])


def _flat(run: Run, row: Row) -> dict[str, Any]:
    return {
        "label": row.label,
        "role": row.role,
        "system": row.spec.system,
        "part": row.part,
        "outcome": row.outcome,
        "why": row.why,
        **row.settings,
        **_numbers_of(row),
        **ends_of("step_s", row.step_s),
        **ends_of("tokens_per_s", row.tokens_per_s),
        **_comparisons(row),
        **_use(row),
        "placements": " ".join(f"{number}:{place}" for number, place in row.placements.items() if place),
        "evidence": row.evidence,
        "error": row.error,
        **_agreement(row),
        **_machine(row),
        "rounds": row.rounds,
        "samples": row.samples,
        "round_median_s": " ".join(f"{number}:{seconds!r}" for number, seconds in row.round_s.items()),
        "missing": "; ".join(f"{name}: {why}" for name, why in row.missing.items()),
        "remarks": "; ".join(row.remarks),
        **_origin(run, row),
    }


def _comparisons(row: Row) -> dict[str, Any]:
    gain = row.gain
    return {
        **ends_of("speedup", row.speedup),
        "verdict": None if row.speedup is None else row.verdict,
        **ends_of("gain", None if gain is None else gain.ratio),
        "gain_over": None if gain is None else gain.over,
        "gain_verdict": None if gain is None else gain.verdict,
    }


def _use(row: Row) -> dict[str, Any]:
    """How much of the machine was used, and how the roles shared the time."""
    roof, roles = row.roof, row.roles
    return {
        "read_bytes_per_s": row.read_bytes_per_s,
        "flops_per_s": row.flops_per_s,
        **ends_of("roof_share", None if roof is None else roof.share),
        "nearer_roof": None if roof is None else roof.limit,
        "peak_isa": None if roof is None else roof.peak_isa,
        "peak_dtype": None if roof is None else roof.peak_dtype,
        **ends_of("host_busy", None if roles is None else roles.host_busy),
        **ends_of("device_busy", None if roles is None else roles.device_busy),
        **ends_of("overlap", None if roles is None else roles.overlap),
    }


def _machine(row: Row) -> dict[str, Any]:
    """What the row took of the machine, and the rounds in which something disturbed it."""
    energy, peak = row.energy, row.peak
    places = {} if peak is None else peak.node_bytes | peak.device_bytes
    return {
        **ends_of("joules_per_token", None if energy is None else energy.joules_per_token),
        "watts": None if energy is None else energy.watts.mid,
        "meters": None if energy is None else " ".join(energy.meters),
        "peak_memory_bytes": None if peak is None else peak.process_bytes,
        "peak_memory_by_place": "; ".join(f"{name}: {nbytes}" for name, nbytes in places.items()),
        "disturbed": "; ".join(
            f"{name}: rounds {' '.join(map(str, rounds))}" for name, rounds in disturbed_rounds(row).items()
        ),
    }


def _agreement(row: Row) -> dict[str, Any]:
    """How the row's logits compare with those `against`, which is empty for the row that others are held against."""
    found = row.agreement
    return {
        "top1_agreement": found and found.top1,
        "kl_nats": found and found.kl_nats,
        "agreement_against": found and found.against,
        "agreement_positions": found and found.positions,
        "unproven": row.unproven,
    }


def _numbers_of(row: Row) -> dict[str, Any]:
    """What a row's arithmetic works on."""
    spec = row.spec
    return {"precision": spec.precision, "dtype": spec.dtype, "tokens_per_expert": spec.tokens_per_expert}


def _origin(run: Run, row: Row) -> dict[str, Any]:
    return {
        "provenance": row.provenance,
        "run": run.header.run,
        "spec_id": row.spec_id,
        "cell": row.cell,
        "code_id": " ".join(dict.fromkeys(record.code_id for record in row.records)),
        "env_id": " ".join(dict.fromkeys(record.env_id for record in row.records)),
        "command": row.command,
    }


def json_text(run: Run, rows: Sequence[Row], table: Table) -> str:
    """The plan's ids, conditions, methods and notes; of each row all fields and all samples of its counting records."""
    return json_of_table(run, table, rows=[_plain(row) for row in rows])


def json_of_table(run: Run, table: Table, **lines: Sequence[dict[str, Any]]) -> str:
    """What a run planned, on which machines, what a table says around its lines, and their plain content by a name."""
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
    # Indented by `json` itself it takes ten times as long.
    return msgspec.json.format(json.dumps(content, ensure_ascii=False, allow_nan=False), indent=1) + "\n"


def _plain(row: Row) -> dict[str, Any]:
    """A row without its spec, which `settings`, `features` and `command` say in fewer words."""
    content = to_plain(row)
    del content["spec"]
    return {
        **content,
        "system": row.spec.system,
        **_numbers_of(row),
        "rounds": row.rounds,
        "samples": row.samples,
        "remarks": row.remarks,
        "disturbed": disturbed_rounds(row),
    }
