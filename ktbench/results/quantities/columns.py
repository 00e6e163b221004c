"""The columns that files and frames have of a cell: SI units, full precision, ids."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from typing import Any

from ktbench.results import Run
from ktbench.results.intervals import Interval, exact
from ktbench.results.quantities.disturbances import disturbed_rounds
from ktbench.results.row import Row, comparable
from ktbench.results.scores import Estimate
from ktbench.results.serving.latency import SHARES
from ktbench.spec.record import Record, TaskResult


def ends_of(name: str, value: Interval | Estimate | None) -> dict[str, float | None]:
    """Columns `<name>_low`, `<name>`, `<name>_high`: of a value without an interval without ends, of None all empty."""
    names = (f"{name}_low", name, f"{name}_high")
    none = value is None or (isinstance(value, Interval) and not value.has_ends)
    ends = (None, None) if value is None or none else (value.low, value.high)
    return dict(zip(names, (ends[0], None if value is None else value.mid, ends[1]), strict=True))


# Between the entries of a cell that is a list of texts, none of which contains it.
SEPARATOR = " | "


def list_text(entries: Iterable[str]) -> str:
    """Texts in one cell, each once, which `str.split(" | ")` takes apart."""
    return SEPARATOR.join(dict.fromkeys(entry.replace("|", "/") for entry in entries))


def pairs_text(values: Mapping[str, object]) -> str:
    """A list of values by name in one cell, such as the reasons why others are missing."""
    return list_text(f"{name}: {value}" for name, value in values.items())


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
    "disturbed_rounds": lambda row: (
        len(rounds_disturbed(row)) if any(record.conduct for record in row.records) else None
    ),
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
    columns = {**_columns(row, _NAMES), **settings, **numbers_of(row), **_columns(row, values)}
    return {**columns, **_peaks_by_place(row), **origin_of(run, row, row.records), "command": row.command}


def _peaks_by_place(row: Row) -> dict[str, int]:
    """Columns `peak_memory_node_0_bytes`, `peak_memory_cuda_0_bytes` … of the memories that were sampled."""
    held = {} if row.peak is None else row.peak.node_bytes | row.peak.device_bytes
    return {f"peak_memory_{re.sub('[^a-z0-9]+', '_', place)}_bytes": size for place, size in held.items()}


def rounds_disturbed(row: Row) -> set[int]:
    """Rounds in which any check found something."""
    return {number for rounds in disturbed_rounds(row).values() for number in rounds}


def numbers_of(row: Row) -> dict[str, Any]:
    """Precision and tokens per expert."""
    return _columns(row, _NUMBERS)


def _field(value: Any, name: str) -> Any:
    return None if value is None else getattr(value, name)


def _columns(row: Row, paths: Mapping[str, str | Callable[[Row], Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, path in paths.items():
        value: Any = path(row) if callable(path) else reduce(_field, path.split("."), row)
        found |= ends_of(name, value) if name in _INTERVALS else {name: value}
    return found


def origin_of(run: Run, row: Row, facts: Iterable[Record | TaskResult]) -> dict[str, Any]:
    """Which run, code and machines `facts` of a row are from."""
    facts = [*facts]
    return {
        "run": run.header.run,
        "spec_id": row.spec_id,
        "cell": row.cell,
        "code_id": list_text(fact.code_id for fact in facts),
        "env_id": list_text(fact.env_id for fact in facts),
    }
