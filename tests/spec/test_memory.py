"""Bytes of workers, and what is refused for not fitting."""

from __future__ import annotations

import pytest

from ktbench.spec.cells import plan_cells
from ktbench.spec.errors import RequestError
from ktbench.spec.memory import MemoryEstimate, estimate_memory, require_memory, worker_bytes
from ktbench.spec.record import Cell
from ktbench.spec.sweep import SweepSpec
from tests.tiny import tiny_cell, tiny_spec

LAYER = 8 * 3 * 64 * 32
LADDER = SweepSpec(name="s", arms=("base", "+v", "+v+d"))
CACHE = 100_000


def estimate(*cells: Cell) -> MemoryEstimate:
    return estimate_memory(cells, CACHE)


def test_each_layout_is_counted_once() -> None:
    base, fused = tiny_cell("base"), tiny_cell("+v", avx512=True)
    both = estimate(base, fused)
    assert both.original == both.packed == 2 * base.spec.model.shape.routed_params
    assert estimate(base).packed == 0
    assert estimate(fused).original == 0


def test_a_layer_alone_is_held_often_enough_to_read_past_the_cache_and_nothing_else_with_it() -> None:
    base, fused = tiny_cell("base", phase="layer"), tiny_cell("+v", phase="layer", avx512=True)
    need = estimate(base, fused)
    copies = need.packed // (2 * LAYER)
    assert need.packed == need.original == copies * 2 * LAYER
    assert (copies - 1) * 2 * LAYER <= 1.25 * CACHE < copies * 2 * LAYER
    assert need.others == 0
    assert estimate(fused).original == 0


def test_precisions_are_workers_of_their_own() -> None:
    sweep = SweepSpec(arms=("base", "+v", "+v int8", "+v int4_g32"))
    cells = plan_cells(tiny_spec(phase="layer"), sweep)
    sizes = worker_bytes(cells, CACHE)
    assert list(sizes) == list(dict.fromkeys(cell.weights_key for cell in cells))
    assert len(sizes) == 3


def test_a_model_that_does_not_fit_is_refused_with_needed_and_free_bytes() -> None:
    cells = plan_cells(tiny_spec(), LADDER)
    with pytest.raises(RequestError, match=r"needs .* GiB \(.* bytes\), free are 0.0 GiB \(1,000 bytes\)"):
        require_memory(cells, 1000, CACHE)
    assert require_memory(cells, 1 << 40, CACHE) == estimate(*cells).total


def test_nothing_to_run_needs_nothing() -> None:
    assert require_memory([], 0, CACHE) == 0


def test_parts_need_not_fit_together_but_each_must() -> None:
    one = plan_cells(tiny_spec(phase="layer"), LADDER, "one")
    two = plan_cells(tiny_spec(phase="layer", precision="int8", avx512=True), SweepSpec(), "two")
    sizes = {cells[0].part: sum(worker_bytes(cells, CACHE).values()) for cells in (one, two)}
    larger = max(sizes.values())
    assert require_memory([*one, *two], larger, CACHE) == larger
    assert require_memory([*one, *two], 1 << 40, CACHE) == sum(sizes.values())
    with pytest.raises(RequestError, match="^one: tiny with one layer needs .*; build fewer with model.experts=N"):
        require_memory([*one, *two], sizes["one"] - 1, CACHE)
