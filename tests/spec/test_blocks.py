"""Blocks of cells that are measured in turns together."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from ktbench.spec.cells import plan_cells, points_of
from ktbench.spec.record import Cell
from ktbench.spec.step.memory import MachineMemory, blocks_of, worker_bytes
from ktbench.spec.sweep import SweepSpec
from tests.tiny import tiny_spec

SWEEP = SweepSpec(arms=("base", "+v", "+v+d"), axes={"model.seed": (0, 1, 2), "workload.batch": (1, 2)})
CELLS = plan_cells(tiny_spec(), SWEEP)
SIZES = worker_bytes(CELLS, MachineMemory())


def held(cells: tuple[Cell, ...]) -> int:
    return sum(SIZES[key] for key in {cell.weights_key for cell in cells})


def test_a_point_is_every_arm_and_its_control() -> None:
    points = points_of(CELLS)
    assert len(points) == 6
    assert all([cell.label for cell in point] == ["base", "+v", "+v+d", "base (A/A)"] for point in points)


def test_what_fits_together_is_one_block() -> None:
    assert blocks_of(CELLS, MachineMemory(free_bytes=held(CELLS))) == (CELLS,)
    assert blocks_of((), MachineMemory()) == ()


def test_points_of_equal_weights_stay_together_where_others_do_not_fit() -> None:
    blocks = blocks_of(CELLS, MachineMemory(free_bytes=held(CELLS) - 1))
    assert len(blocks) == 2
    assert [len(block) for block in blocks] == [16, 8]


def test_an_arm_that_is_missing_at_a_point_tears_no_other_from_its_baseline() -> None:
    arms = ("transformers eager", "+v")
    sweep = SweepSpec(arms=arms, baseline="+v", axes={"precision": ("q8_0", "bf16")})
    points = points_of(plan_cells(tiny_spec(), sweep))
    assert [[cell.label for cell in point] for point in points] == [["+v", "+v (A/A)"], [*arms, "+v (A/A)"]]


def test_arms_that_name_their_precision_are_one_point() -> None:
    sweep = SweepSpec(arms=("base", "+v", "+v int8"), axes={"workload.batch": (1, 2)})
    assert [len(point) for point in points_of(plan_cells(tiny_spec(), sweep))] == [4, 4]


def test_parts_are_not_mixed_up() -> None:
    two = tuple(cell for part in ("one", "two") for cell in plan_cells(tiny_spec(), SweepSpec(arms=("base",)), part))
    assert [point[0].part for point in points_of(two)] == ["one", "two"]


@settings(deadline=None)
@given(st.integers(0, 2 * held(CELLS)))
def test_every_cell_once_and_no_point_torn(free_bytes: int) -> None:
    blocks = blocks_of(CELLS, MachineMemory(free_bytes=free_bytes))
    assert sorted(cell.key for block in blocks for cell in block) == sorted(cell.key for cell in CELLS)
    assert all(held(block) <= free_bytes or len(points_of(block)) == 1 for block in blocks)
    assert all(point in points_of(CELLS) for block in blocks for point in points_of(block))


def test_points_of_equal_weights_share_a_block_wherever_they_stand() -> None:
    sweep = SweepSpec(arms=("base",), axes={"workload.batch": (1, 2), "model.seed": (0, 1)})
    cells = plan_cells(tiny_spec(), sweep)
    one = max(worker_bytes(cells, MachineMemory()).values())
    blocks = blocks_of(cells, MachineMemory(free_bytes=one))
    assert [[cell.spec.model.seed for cell in block] for block in blocks] == [[0] * 4, [1] * 4]
