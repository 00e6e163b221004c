"""Sweeps that name parts: every part composed with the same overrides, which win."""

from __future__ import annotations

import pytest

from ktbench.config import Request, compose, freeze
from ktbench.spec.cells import plan_cells
from ktbench.spec.errors import RequestError
from ktbench.spec.record import Cell

KERNELS = ("qwen3_layer", "deepseek_layer", "few_tokens", "scheduling", "domains", "routing")


def requested(*overrides: str) -> Request:
    return freeze(compose(overrides))


def cells_of(request: Request) -> dict[str, tuple[Cell, ...]]:
    return {part.name: plan_cells(part.spec, part.sweep, part.name) for part in request.parts}


def test_parts_are_the_ablations_they_name() -> None:
    request = requested("+ablation=kernels")
    assert tuple(part.name for part in request.parts) == KERNELS
    for part in request.parts:
        (alone,) = requested(f"+ablation=kernels/{part.name}").parts
        assert alone.name == ""
        assert (alone.sweep, alone.title) == (part.sweep, part.title)
        assert [cell.spec_id for cell in plan_cells(alone.spec, alone.sweep)] == [
            cell.spec_id for cell in plan_cells(part.spec, part.sweep, part.name)
        ]


def test_cells_know_their_part_and_every_part_has_a_control_at_every_point() -> None:
    for name, cells in cells_of(requested("+ablation=kernels")).items():
        assert {cell.part for cell in cells} == {name}
        points = {repr(cell.spec.workload) for cell in cells}
        controls = [cell for cell in cells if cell.role == "control"]
        assert {repr(cell.spec.workload) for cell in controls} == points
        assert len(controls) == len(points)


def test_the_runs_own_measure_holds_for_all_parts() -> None:
    request = requested("+ablation=kernels", "measure.goal=0.2")
    assert request.title == "MoE kernels against the roofs of this machine"
    assert (request.measure.goal, request.measure.max_minutes) == (0.2, 30.0)
    assert {part.spec.measure for part in request.parts} == {request.measure}


def test_an_override_wins_in_every_part_over_settings_and_axes_alike() -> None:
    request = requested("+ablation=kernels", "workload.steps=2", "workload.batch=4", "model=tiny")
    for cells in cells_of(request).values():
        assert {(cell.spec.workload.steps, cell.spec.workload.batch) for cell in cells} == {(2, 4)}
        assert {cell.spec.model.name for cell in cells} == {"tiny"}


def test_sweep_overrides_are_for_the_parts() -> None:
    request = requested("+ablation=kernels", "sweep.arms=[base,+v int8]", "sweep.baseline=base", "sweep.control=false")
    for cells in cells_of(request).values():
        assert {(cell.label, cell.role) for cell in cells} == {("base", "arm"), ("+v int8", "arm")}


def test_parts_may_be_named_on_the_command_line() -> None:
    request = requested("sweep.parts=[decode,kernels/domains]", "sweep.name=mine")
    assert [part.name for part in request.parts] == ["decode", "domains"]
    assert (request.sweep.name, request.title, request.is_sweep) == ("mine", "mine", True)


def test_a_request_of_one_cell_is_one_part_without_a_name() -> None:
    request = requested("engine.avx512=true")
    (part,) = request.parts
    assert (part.name, part.title, request.title, request.is_sweep) == ("", "+v", "+v", False)


def test_a_trace_goes_to_the_cells_that_replay_it() -> None:
    cells = cells_of(requested("+ablation=kernels", "workload.trace=routes.npz"))
    traces = {(cell.spec.workload.routing, cell.spec.workload.trace) for part in cells.values() for cell in part}
    assert traces == {("balanced", None), ("zipf", None), ("concentrated", None), ("recorded", "routes.npz")}
    (alone,) = requested("workload=layer", "workload.routing=recorded", "workload.trace=routes.npz").parts
    assert alone.spec.workload.trace == "routes.npz"


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["sweep.parts=[kernels]"], "sweep.parts: kernels has parts itself"),
        (["sweep.parts=[decod]"], "ablation=decod: unknown, did you mean decode"),
        (["sweep.parts=decode"], "sweep.parts=decode: must be a list of ablations"),
        (["sweep.parts=[decode,decode]"], "two parts are called decode"),
        (["+ablation=kernels/nothing"], "ablation=kernels/nothing: unknown"),
        (["+ablation=kernels", "engine.w=true"], "engine.w: unknown key"),
        (["+ablation=kernels", "sweep.armz=[base]"], "sweep.armz: unknown key"),
        (["+ablation=kernels", "workload.batch=0"], "workload.batch=0: must be at least 1"),
        (["+ablation=kernels/domains", "workload.trace=routes.npz"], "set workload.routing=recorded with it"),
        (["+ablation=kernels/domains", "sweep.axes=3"], "sweep.axes: expected object, got int"),
        (
            ["+ablation=kernels/scheduling", "workload.trace=routes.npz", "sweep.axes=3"],
            "set workload.routing=recorded",
        ),
        (["+ablation=decode", "workload.routing=recorded"], "is for workload.phase=layer, or set machine="),
    ],
)
def test_mistake_is_one_line(overrides: list[str], says: str) -> None:
    with pytest.raises(RequestError) as raised:
        requested(*overrides)
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)
