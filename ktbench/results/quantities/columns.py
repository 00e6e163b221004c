"""What files and frames have of a cell, by column or as JSON: SI units, full precision, ids."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from ktbench.results import Run
from ktbench.results.intervals import Interval
from ktbench.results.quantities.disturbances import disturbed_rounds
from ktbench.results.quantities.quantity import Quantity
from ktbench.results.quantities.table import QUANTITIES
from ktbench.results.quantities.text import list_text
from ktbench.results.row import Row
from ktbench.results.scores import Estimate
from ktbench.spec.record import Record, TaskResult
from ktbench.spec.wire import fact_to_plain, to_plain

T = TypeVar("T")


def ends_of(name: str, value: Interval | Estimate | None) -> dict[str, float | None]:
    """Columns `<name>_low`, `<name>`, `<name>_high`: of a value without an interval without ends, of None all empty."""
    names = (f"{name}_low", name, f"{name}_high")
    none = value is None or (isinstance(value, Interval) and not value.has_ends)
    ends = (None, None) if value is None or none else (value.low, value.high)
    return dict(zip(names, (ends[0], None if value is None else value.mid, ends[1]), strict=True))


def columns_of(run: Run, row: Row) -> dict[str, Any]:
    """Everything that the CSV has of a row, by column; None where a value is missing."""
    return {
        "label": row.label,
        "role": row.role,
        "system": row.spec.system,
        "part": row.part,
        "outcome": row.outcome,
        "why": row.why,
        **row.settings,
        **({} if row.spec.machine is None else {"machine": row.spec.machine.name}),  # as requests name it
        **_numbers(row),
        **cells_of_line(QUANTITIES, row),
        **origin_of(run, row, row.records),
        "command": row.command,
    }


def _numbers(row: Row) -> dict[str, Any]:
    return {"precision": row.spec.precision, "dtype": row.spec.dtype, "tokens_per_expert": row.spec.tokens_per_expert}


def cells_of_line(quantities: Iterable[Quantity[T]], line: T) -> dict[str, Any]:
    """What files have of a line, by column; None where a value is missing."""
    cells: dict[str, Any] = {}
    for one in quantities:
        if one.csv and one.has(line):
            cells |= _cells(one, one.value(line))
    return cells


def blank_line(quantities: Iterable[Quantity[T]]) -> dict[str, None]:
    """The columns that each line has, without values."""
    return {name: None for one in quantities if one.csv for name in _cells(one, None)}


def _cells(one: Quantity[T], value: Any) -> dict[str, Any]:
    if one.has_ends:
        return ends_of(one.name, value)
    if one.is_estimate:
        ends = {"": "mid", "_se": "se", "_low": "low", "_high": "high"}
        return {f"{one.name}{end}": value and getattr(value, attribute) for end, attribute in ends.items()}
    if one.csv_keys:
        return {one.csv_keys.format(re.sub("[^a-z0-9]+", "_", key)): mine for key, mine in (value or {}).items()}
    return {one.name: list_text(value) if isinstance(value, tuple) else value}


def plain_of(row: Row) -> dict[str, Any]:
    """What the JSON has of a row, all samples of its records included; `settings` and `command` hold its spec."""
    content = to_plain(replace(row, records=(), values={}, trial_times={}))
    del content["spec"], content["values"], content["trial_times"]
    content["records"] = [fact_to_plain(record) for record in row.records]
    placed = {one.place: to_plain(one.value(row)) if one.has(row) else None for one in QUANTITIES if one.place}
    return {
        **content,
        **{name: _at((name,), placed) for name in dict.fromkeys(place[0] for place in placed)},
        "system": row.spec.system,
        **_numbers(row),
        "disturbed": disturbed_rounds(row),
    }


def _at(place: tuple[str, ...], placed: Mapping[tuple[str, ...], Any]) -> Any:
    """The value at a place, or those below it by name; None where all of these are."""
    if place in placed:
        return placed[place]
    depth = len(place)
    names = dict.fromkeys(other[depth] for other in placed if other[:depth] == place)
    found = {name: _at((*place, name), placed) for name in names}
    return found if any(value is not None for value in found.values()) else None


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
