"""Which cells are measured in turns together: all where their weights fit in memory at once, else as many as do.

Only cells of one point of a part are compared with each other, so points may be measured one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence

from ktbench.spec.memory import WeightsKey, worker_bytes
from ktbench.spec.points import points_of
from ktbench.spec.record import Cell


def blocks_of(cells: Sequence[Cell], free_bytes: int, cache_bytes: int) -> tuple[tuple[Cell, ...], ...]:
    """Points whose workers fit in `free_bytes` together, each in the first block that has room for its own."""
    sizes = worker_bytes(cells, cache_bytes)
    blocks: list[list[Cell]] = []
    for point in points_of(cells):
        block = next((block for block in blocks if _held([*block, *point], sizes) <= free_bytes), None)
        if block is None:
            blocks.append(block := [])
        block += point
    return tuple(map(tuple, blocks))


def _held(cells: Sequence[Cell], sizes: dict[WeightsKey, int]) -> int:
    return sum(sizes[key] for key in {cell.spec.weights_key for cell in cells})
