"""Which cells are measured in turns together: all where their weights fit in memory at once, else as many as do.

Only cells of one point of a part are compared with each other, so points may be measured one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ktbench.core.record import Cell
from ktbench.plan.memory import WeightsKey, worker_bytes
from ktbench.plan.points import points_of


def blocks_of(cells: Sequence[Cell], free_bytes: int, cache_bytes: int) -> tuple[tuple[Cell, ...], ...]:
    """Points that follow each other, joined as long as the workers of all of them fit in `free_bytes` together."""
    return tuple(_joined(points_of(cells), worker_bytes(cells, cache_bytes), free_bytes))


def _joined(
    points: Sequence[Sequence[Cell]], sizes: dict[WeightsKey, int], free_bytes: int
) -> Iterator[tuple[Cell, ...]]:
    block: list[Cell] = []
    for point in points:
        if block and _held([*block, *point], sizes) > free_bytes:
            yield tuple(block)
            block = []
        block += point
    if block:
        yield tuple(block)


def _held(cells: Sequence[Cell], sizes: dict[WeightsKey, int]) -> int:
    return sum(sizes[key] for key in {cell.spec.weights_key for cell in cells})
