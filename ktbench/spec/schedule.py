"""Who works when: cells take turns, odd rounds walk back, so that drift of the machine falls on all alike."""

from __future__ import annotations

from collections.abc import Sequence

from ktbench.spec.peers import BY_NAME
from ktbench.spec.record import Cell


def turn_order(cells: Sequence[Cell], round_number: int) -> tuple[Cell, ...]:
    """Order of one round. In the first one opaque peers come last: they are held against the others' logits."""
    if round_number == 0:
        return tuple(sorted(cells, key=_is_opaque))
    return tuple(cells if round_number % 2 == 0 else reversed(cells))


def _is_opaque(cell: Cell) -> bool:
    return cell.spec.system != "ktbench" and BY_NAME[cell.spec.system].opaque


def worker_groups(cells: Sequence[Cell]) -> tuple[tuple[Cell, ...], ...]:
    """Cells that share weights share a worker; groups come in order of their first cell."""
    groups: dict[tuple[object, ...], list[Cell]] = {}
    for cell in cells:
        groups.setdefault(cell.spec.weights_key, []).append(cell)
    return tuple(tuple(group) for group in groups.values())
