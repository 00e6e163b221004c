"""The cells of a sweep: every arm at every point of the axes, and the control beside each baseline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any

from ktbench.spec.arms import arm_changes
from ktbench.spec.errors import RequestError
from ktbench.spec.ids import spec_id
from ktbench.spec.machine import BY_NAME as CONSTANTS
from ktbench.spec.machine import with_constant
from ktbench.spec.plain import from_plain, to_plain
from ktbench.spec.record import Cell
from ktbench.spec.run_spec import RunSpec
from ktbench.spec.sweep import SweepSpec


def plan_cells(spec: RunSpec, sweep: SweepSpec, part: str = "") -> tuple[Cell, ...]:
    """Cells of one part of a run in table order.

    Where precisions vary an arm has no cell at those that it has no weights of: base and plain Transformers run bf16.
    Raises RequestError where an axis or an arm leads to a spec that is refused, or two lead to the same one.
    """
    if sweep.is_published_alone:
        return ()
    if not sweep.arms:
        return (Cell(label=spec.label, spec=spec, spec_id=spec_id(spec), part=part),)
    cells = [cell for changes in sweep.points for cell in _cells_at(spec, changes, sweep, part)]
    able = {cell.label for cell in cells if cell.spec.has_format}
    kept = tuple(cell for cell in cells if cell.spec.has_format or cell.label not in able)
    _require_distinct(kept)
    return kept


def _cells_at(spec: RunSpec, changes: Mapping[str, Any], sweep: SweepSpec, part: str) -> Iterator[Cell]:
    specs = {arm: _changed(spec, {**changes, **arm_changes(arm)}) for arm in sweep.arms}
    for arm, changed in specs.items():
        yield Cell(label=arm, spec=changed, spec_id=spec_id(changed), part=part)
    if sweep.control:
        base = specs[sweep.baseline]
        yield Cell(label=f"{sweep.baseline} (A/A)", spec=base, spec_id=spec_id(base), role="control", part=part)


def _require_distinct(cells: Sequence[Cell]) -> None:
    seen: dict[str, Cell] = {}
    for cell in cells:
        if (same := seen.setdefault(cell.key, cell)) is not cell:
            raise RequestError(f"sweep: {same.label!r} and {cell.label!r} are the same cell ({cell.spec.summary})")


def _changed(spec: RunSpec, changes: Mapping[str, Any]) -> RunSpec:
    """The spec with changes by dotted key: whole parts first, what they hold after them."""
    content = to_plain(spec)
    for key in sorted(changes, key=lambda key: key.count(".")):
        _change(content, key, changes[key])
    try:
        return from_plain(content, RunSpec)
    except ValueError as error:
        raise RequestError(str(error)) from None


def _change(content: dict[str, Any], key: str, value: Any) -> None:
    *parents, last = key.split(".")
    node = content
    for parent in parents:
        node = node.get(parent) if isinstance(node, dict) else None  # type: ignore[assignment]
    if parents == ["machine"] and node is None:
        raise RequestError(f"sweep.axes.{key}: the machine here is measured as it is, describe one with machine=NAME")
    if not isinstance(node, dict) or last not in node:
        raise RequestError(f"sweep.axes.{key}: no such key in a run's spec")
    if parents == ["machine"] and last in CONSTANTS:
        node |= with_constant(node, last, value)
    else:
        node[last] = deepcopy(value)
