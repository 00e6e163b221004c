"""The cells of a sweep: every arm at every point of the axes, and the control beside each baseline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

from ktbench.core.errors import RequestError
from ktbench.core.features import FEATURES, parse_features
from ktbench.core.ids import spec_id
from ktbench.core.plain import from_plain, to_plain
from ktbench.core.record import Cell
from ktbench.core.spec import RunSpec
from ktbench.core.sweep import SweepSpec


def plan_cells(spec: RunSpec, sweep: SweepSpec) -> tuple[Cell, ...]:
    """Cells in table order. Raises RequestError where an axis or an arm leads to a spec that is refused."""
    if not sweep.arms:
        return (_cell(spec.engine.label, spec),)
    points = [_at_point(spec, sweep.axes, values) for values in product(*sweep.axes.values())]
    return tuple(cell for point in points for cell in _cells_at(point, sweep))


def _cells_at(point: RunSpec, sweep: SweepSpec) -> Iterator[Cell]:
    for arm in sweep.arms:
        yield _cell(arm, _changed(point, {f"engine.{name}": value for name, value in parse_features(arm).items()}))
    if sweep.control:
        features = parse_features(sweep.baseline)
        spec = _changed(point, {f"engine.{name}": value for name, value in features.items()})
        yield Cell(label=f"{sweep.baseline} (A/A)", spec=spec, spec_id=spec_id(spec), role="control")


def _cell(label: str, spec: RunSpec) -> Cell:
    return Cell(label=label, spec=spec, spec_id=spec_id(spec))


def _at_point(spec: RunSpec, axes: Mapping[str, tuple[Any, ...]], values: tuple[Any, ...]) -> RunSpec:
    return _changed(spec, dict(zip(axes, values, strict=True)))


def _changed(spec: RunSpec, changes: Mapping[str, Any]) -> RunSpec:
    content = to_plain(spec)
    for key, value in changes.items():
        *parents, last = key.split(".")
        node = content
        for parent in parents:
            node = node.get(parent) if isinstance(node, dict) else None
        if not isinstance(node, dict) or last not in node:
            raise RequestError(f"sweep.axes.{key}: no such key in a run's spec")
        node[last] = value
    try:
        return from_plain(content, RunSpec)
    except ValueError as error:
        raise RequestError(str(error)) from None


def unsupported(spec: RunSpec, lacking: Mapping[str, str]) -> str:
    """Why this machine cannot run the spec's features; empty where it can.

    `lacking` gives for each feature name what the machine lacks, empty where it lacks nothing.
    """
    asked = [feature for feature in FEATURES if spec.engine.features[feature.name] != feature.off]
    return "; ".join(
        f"{feature.tag(spec.engine.features[feature.name])}: {lacking[feature.name]}"
        for feature in asked
        if lacking[feature.name]
    )
