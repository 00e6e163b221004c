"""The cells of a sweep: every arm at every point of the axes, a control beside each baseline, and their order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import fields
from itertools import product
from random import Random
from typing import Any

from ktbench.spec.errors import RequestError, did_you_mean
from ktbench.spec.features import BY_NAME
from ktbench.spec.machine import BY_NAME as CONSTANTS
from ktbench.spec.machine import with_constant
from ktbench.spec.peers import is_black_box
from ktbench.spec.record import Cell
from ktbench.spec.run_spec import RunSpec, WorkloadSpec
from ktbench.spec.sweep import SweepSpec, arm_changes, arm_precision, arm_start, is_sampled
from ktbench.spec.wire import from_plain, spec_id, to_plain

# Smaller layers are those of toy models, which may stay in the cache.
_MOST_COPIES = 64


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
    for copy, (arm, changed) in product(range(1, sweep.copies + 1), specs.items()):
        label = f"{arm} (A/A {copy + 1})"
        yield Cell(label=label, spec=changed, spec_id=spec_id(changed), role="control", part=part, copy=copy)


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
    is_feature = parents == ["engine", "own"] and last in BY_NAME
    if not isinstance(node, dict) or not (last in node or is_feature):
        hint = did_you_mean(last, node) if isinstance(node, dict) else ""
        raise RequestError(f"sweep.axes.{key}: no such key in a run's spec{hint}")
    if parents == ["machine"] and last in CONSTANTS:
        node |= with_constant(node, last, value)
    else:
        node[last] = deepcopy(value)


def points_of(cells: Sequence[Cell]) -> tuple[tuple[Cell, ...], ...]:
    """Cells that are compared with each other together, in the order of the plan: arms and control of one point.

    They differ in system and features, and in what labels of their part name: precisions, states of the prefix cache,
    and whether tokens are drawn.
    """
    precisions = {cell.part for cell in cells if arm_precision(cell.arm)}
    starts = {cell.part for cell in cells if arm_start(cell.arm)}
    sampled = {cell.part for cell in cells if is_sampled(cell.arm)}
    points: dict[tuple[object, ...], list[Cell]] = {}
    for cell in cells:
        precision = "" if cell.part in precisions else cell.spec.precision
        work = cell.spec.workload.without_start if cell.part in starts else cell.spec.workload
        work = work.greedy if cell.part in sampled else work
        points.setdefault(_point(cell, precision, work), []).append(cell)
    return tuple(tuple(point) for point in points.values())


def _point(cell: Cell, precision: str, work: WorkloadSpec) -> tuple[object, ...]:
    spec = cell.spec
    engine = tuple(repr(getattr(spec.engine, f.name)) for f in fields(spec.engine) if f.name not in (*BY_NAME, "own"))
    return (
        cell.part,
        repr(spec.model),
        repr(work),
        repr(spec.inject),
        repr(spec.machine),
        *engine,
        precision,
        spec.device_precision,
    )


def turn_order(cells: Sequence[Cell], round_number: int) -> tuple[Cell, ...]:
    """Order of one round, drawn from the cells' keys and its number: the same where a run is resumed.

    The first one is that of the plan, with black boxes last: logits are compared with those of the first cell.
    """
    if round_number == 0:
        return tuple(sorted(cells, key=lambda cell: is_black_box(cell.spec.system)))
    keys = " ".join(cell.key for cell in cells)
    return tuple(cells[place] for place in drawn_order(len(cells), round_number, keys))


def drawn_order(count: int, number: int, seed: str) -> tuple[int, ...]:
    """The order of `count` things in round `number`, a permutation of 0 to `count` - 1.

    Drawn anew for every `count` rounds, or 2 * `count` where that is odd, in which each thing is equally often in each
    place and right after each other one (Williams, Experimental Designs Balanced for the Estimation of Residual Effects
    of Treatments, 1949). What recurs in step with the rounds therefore does not keep meeting the same things.
    """
    period = 2 * count if count % 2 else count
    block, place = divmod(number, period)
    rng = Random(f"{seed} {block}")
    names, rows = _shuffled(count, rng), _shuffled(period, rng)
    zigzag = (step // 2 if step % 2 == 0 else -1 - step // 2 for step in range(count))
    order = tuple(names[(step + rows[place]) % count] for step in zigzag)
    return order[::-1] if rows[place] >= count else order


def _shuffled(count: int, rng: Random) -> list[int]:
    return sorted(range(count), key=lambda _: rng.random())  # of `random()` alone Python keeps the numbers


def worker_groups(cells: Sequence[Cell]) -> tuple[tuple[Cell, ...], ...]:
    """Cells that share weights share a worker; groups come in order of their first cell."""
    groups: dict[tuple[object, ...], list[Cell]] = {}
    for cell in cells:
        groups.setdefault(cell.weights_key, []).append(cell)
    return tuple(tuple(group) for group in groups.values())


def layer_copies(expert_bytes: int, cache_bytes: int) -> int:
    """Copies of a layer of which one round reads more than 1.25 times the last-level cache, at least 1, at most 64.

    `expert_bytes` are those of all the routed experts of one layer as they are held, `cache_bytes` those of the
    last-level cache (0 where it is not known). Raises ValueError where a layer has no bytes.
    """
    if expert_bytes < 1:
        raise ValueError(f"expert_bytes={expert_bytes}: must be at least 1")
    return min(5 * cache_bytes // (4 * expert_bytes) + 1, _MOST_COPIES)
