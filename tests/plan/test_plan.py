"""Cells, order and memory of a plan."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ktbench.core.errors import RequestError
from ktbench.core.sweep import SweepSpec
from ktbench.plan import estimate_memory, plan_cells, require_memory, turn_order, unsupported, worker_groups
from tests.tiny import tiny_cell, tiny_spec

LADDER = SweepSpec(name="s", arms=("base", "+v", "+v+d"))
NOTHING_LACKS = dict.fromkeys(["v", "m", "d", "n", "c", "deferral", "skipping"], "")


def test_ladder_with_its_control() -> None:
    cells = plan_cells(tiny_spec(), LADDER)
    assert [cell.label for cell in cells] == ["base", "+v", "+v+d", "base (A/A)"]
    assert cells[3].spec == cells[0].spec
    assert cells[3].key != cells[0].key
    assert cells[2].spec.engine.d


def test_axes_multiply_arms() -> None:
    axes = {"workload.prompt": (8, 16), "workload.batch": (1, 2)}
    cells = plan_cells(tiny_spec(), replace(LADDER, axes=axes, control=False))
    assert len({cell.key for cell in cells}) == len(cells) == 3 * 4


@pytest.mark.parametrize(
    ("axes", "says"),
    [
        ({"workload.promt": (1,)}, "sweep.axes.workload.promt: no such key"),
        ({"nothing.at.all": (1,)}, "no such key"),
        ({"workload.prompt": (0,)}, "workload.prompt=0: must be at least 1"),
    ],
)
def test_bad_axis_is_named(axes: dict[str, tuple[int, ...]], says: str) -> None:
    with pytest.raises(RequestError, match=says):
        plan_cells(tiny_spec(), replace(LADDER, axes=axes))


@given(st.integers(0, 50))
def test_every_round_visits_every_cell_once_and_odd_ones_walk_back(number: int) -> None:
    cells = plan_cells(tiny_spec(), LADDER)
    order = turn_order(cells, number)
    assert sorted(cell.key for cell in order) == sorted(cell.key for cell in cells)
    assert order == turn_order(cells, number + 1)[::-1]


def test_cells_that_share_weights_share_a_worker() -> None:
    cells = [*plan_cells(tiny_spec(), LADDER), *plan_cells(replace(tiny_spec(), model=_other_seed()), LADDER)]
    assert [len(group) for group in worker_groups(cells)] == [4, 4]


def _other_seed():  # type: ignore[no-untyped-def]
    return replace(tiny_spec().model, seed=1)


def test_what_a_machine_lacks_is_named_per_feature() -> None:
    lacking = NOTHING_LACKS | {"n": "one NUMA node", "c": "no CUDA device"}
    assert unsupported(tiny_spec(v=True, d=True), lacking) == ""
    assert unsupported(tiny_spec(v=True, n=True, c=True), lacking) == "+n: one NUMA node; +c: no CUDA device"


def test_memory_counts_each_layout_once() -> None:
    base, fused = tiny_cell("base"), tiny_cell("+v", v=True)
    both = estimate_memory([base, fused])
    assert both.original == both.packed == 2 * base.spec.model.shape.routed_params
    assert estimate_memory([base]).packed == 0
    assert estimate_memory([fused]).original == 0


def test_a_model_that_does_not_fit_is_refused_with_needed_and_free_bytes() -> None:
    cells = plan_cells(tiny_spec(), LADDER)
    with pytest.raises(RequestError, match=r"needs .* GiB \(.* bytes\), free are 0.0 GiB \(1,000 bytes\)"):
        require_memory(cells, 1000)
    assert require_memory(cells, 1 << 40) < 1 << 40
