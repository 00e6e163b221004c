"""Cells that are compared with each other."""

from __future__ import annotations

from collections.abc import Sequence

from ktbench.core.record import Cell


def points_of(cells: Sequence[Cell]) -> tuple[tuple[Cell, ...], ...]:
    """Cells that are compared with each other together, in the order of the plan: arms and control of one point."""
    points: list[list[Cell]] = []
    for cell in cells:
        if not points or points[-1][0].part != cell.part or cell.label in {other.label for other in points[-1]}:
            points.append([])
        points[-1].append(cell)
    return tuple(tuple(point) for point in points)
