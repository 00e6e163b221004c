"""Cells that are compared with each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from ktbench.spec.arms import arm_precision
from ktbench.spec.features import BY_NAME
from ktbench.spec.record import Cell


def points_of(cells: Sequence[Cell]) -> tuple[tuple[Cell, ...], ...]:
    """Cells that are compared with each other together, in the order of the plan: arms and control of one point.

    They differ in system and features, and in precision where labels of their part name one.
    """
    worded = {cell.part for cell in cells if arm_precision(_arm(cell))}
    points: dict[tuple[object, ...], list[Cell]] = {}
    for cell in cells:
        points.setdefault(_point(cell, worded=cell.part in worded), []).append(cell)
    return tuple(tuple(point) for point in points.values())


def _arm(cell: Cell) -> str:
    return cell.label.removesuffix(" (A/A)")


def _point(cell: Cell, *, worded: bool) -> tuple[object, ...]:
    spec = cell.spec
    engine = tuple(repr(getattr(spec.engine, f.name)) for f in fields(spec.engine) if f.name not in BY_NAME)
    precision = "" if worded else spec.precision
    return (
        cell.part,
        repr(spec.model),
        repr(spec.workload),
        repr(spec.inject),
        repr(spec.machine),
        *engine,
        precision,
        spec.device_precision,
    )
