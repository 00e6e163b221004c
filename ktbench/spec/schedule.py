"""The order of trials: every other round runs backwards, so that drift of the machine affects all cells alike."""

from __future__ import annotations

from collections.abc import Sequence

from ktbench.spec.peers import is_black_box
from ktbench.spec.record import Cell


def turn_order(cells: Sequence[Cell], round_number: int) -> tuple[Cell, ...]:
    """Order of one round. In the first one black boxes come last: their logits are compared with the others'."""
    if round_number == 0:
        return tuple(sorted(cells, key=lambda cell: is_black_box(cell.spec.system)))
    return tuple(cells if round_number % 2 == 0 else reversed(cells))


def worker_groups(cells: Sequence[Cell]) -> tuple[tuple[Cell, ...], ...]:
    """Cells that share weights share a worker; groups come in order of their first cell."""
    groups: dict[tuple[object, ...], list[Cell]] = {}
    for cell in cells:
        groups.setdefault(cell.spec.weights_key, []).append(cell)
    return tuple(tuple(group) for group in groups.values())
