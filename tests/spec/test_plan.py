"""Cells of a plan, their order, and the copies of a layer that read past the cache."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ktbench.resources import data_folder
from ktbench.results.settings import cell_settings
from ktbench.spec.cells import drawn_order, layer_copies, plan_cells, points_of, turn_order, worker_groups
from ktbench.spec.engine import PlacementSpec, ServingSpec
from ktbench.spec.errors import RequestError
from ktbench.spec.serving.stream import StreamSpec
from ktbench.spec.sweep import SweepSpec
from ktbench.spec.wire import to_plain
from tests.tiny import tiny_spec

LADDER = SweepSpec(name="s", arms=("base", "+v", "+v+d"))


def test_ladder_with_its_control() -> None:
    cells = plan_cells(tiny_spec(), LADDER)
    assert [cell.label for cell in cells] == ["base", "+v", "+v+d", "base (A/A)"]
    assert cells[3].spec == cells[0].spec
    assert cells[3].key != cells[0].key
    assert cells[2].spec.engine.dynamic


def test_arms_change_the_precision_too_and_the_control_is_the_baseline() -> None:
    sweep = SweepSpec(arms=("base", "+v", "+v int8"), baseline="+v int8")
    cells = plan_cells(tiny_spec(precision="int4_g32"), sweep)
    assert [cell.spec.precision for cell in cells] == ["int4_g32", "int4_g32", "int8", "int8"]
    assert (cells[3].label, cells[3].spec) == ("+v int8 (A/A)", cells[2].spec)
    assert [len(group) for group in worker_groups(cells)] == [2, 2]


def test_arms_that_say_what_the_prefix_cache_has_are_compared_at_one_point() -> None:
    stream = StreamSpec(requests=1, concurrency=1)
    serving = ServingSpec(ram_bytes=1)
    spec = tiny_spec(phase="serve", workload={"stream": stream, "steps": 1}, serving=serving)
    cells = plan_cells(spec, SweepSpec(arms=("base", "+p cold", "+p warm", "+p ram")))
    starts = [cell.spec.workload.stream and cell.spec.workload.stream.cache for cell in cells]
    assert starts == ["cold", "cold", "warm", "ram", "cold"]
    assert points_of(cells) == (cells,)
    assert len({tuple(settings.items()) for settings in cell_settings(cells).values()}) == 1
    with pytest.raises(RequestError, match=r"cache=disk: needs a folder, set engine\.serving\.disk"):
        plan_cells(spec, SweepSpec(arms=("base", "+p disk")))


def test_where_precisions_vary_an_arm_has_no_cell_at_those_that_it_has_no_weights_of() -> None:
    arms = ("llama.cpp", "transformers eager", "base", "+v", "+m")
    sweep = SweepSpec(arms=arms, baseline="llama.cpp", axes={"precision": ("bf16", "q8_0", "int8")}, control=False)
    found = [(cell.spec.precision, cell.label) for cell in plan_cells(tiny_spec(), sweep)]
    bf16 = [("bf16", arm) for arm in arms]
    assert found == [
        *bf16,
        *((precision, arm) for precision in ("q8_0", "int8") for arm in ("llama.cpp", "+v", "+m")),
    ]


def test_in_the_first_round_opaque_peers_come_after_those_whose_logits_they_are_held_against() -> None:
    sweep = SweepSpec(arms=("llama.cpp", "transformers eager", "+v"), baseline="llama.cpp")
    cells = plan_cells(tiny_spec(), sweep)
    first, *others = ([cell.label for cell in turn_order(cells, number)] for number in range(8))
    assert first[:2] == ["transformers eager", "+v"] and all(label.startswith("llama.cpp") for label in first[2:])
    assert {order[0] for order in others} == {cell.label for cell in cells}


def test_in_the_first_round_logits_are_held_against_those_of_the_baseline() -> None:
    for seed in range(10):
        cells = plan_cells(tiny_spec(workload={"seed": seed}), LADDER)
        assert turn_order(cells, 0)[0].label == "base"


def test_an_arm_without_weights_of_the_only_precision_is_a_cell_with_its_reason_to_come() -> None:
    cells = plan_cells(tiny_spec(precision="int8"), replace(LADDER, control=False))
    assert [cell.label for cell in cells] == ["base", "+v", "+v+d"]


def test_the_same_cell_in_two_parts_is_two_cells_of_one_worker() -> None:
    cells = [*plan_cells(tiny_spec(), LADDER, "one"), *plan_cells(tiny_spec(), LADDER, "two")]
    assert len({cell.key for cell in cells}) == 8
    assert len({cell.spec_id for cell in cells}) == 3
    assert [len(group) for group in worker_groups(cells)] == [8]


def test_two_arms_that_are_one_cell_are_refused() -> None:
    sweep = SweepSpec(arms=("base", "+v", "+v bf16"))
    with pytest.raises(RequestError, match=r"'\+v' and '\+v bf16' are the same cell"):
        plan_cells(tiny_spec(), sweep)


def test_a_mapping_sets_what_goes_with_a_value_of_an_axis() -> None:
    axes = {"workload.batch": (1, {"workload.batch": 4, "workload.steps": 1})}
    cells = plan_cells(tiny_spec(), replace(LADDER, axes=axes, control=False))
    found = {(cell.spec.workload.batch, cell.spec.workload.steps) for cell in cells}
    assert found == {(1, 3), (4, 1)}


@pytest.mark.parametrize(
    "axes",
    [
        {"engine.placement.ratio": (0.25, 0.5)},
        {"engine.placement": ({"engine.placement": {"policy": "random", "ratio": ratio}} for ratio in (0.25, 0.5))},
        {
            "engine.placement.policy": (
                {"engine.placement.policy": "random", "engine.placement.ratio": ratio} for ratio in (0.25, 0.5)
            )
        },
    ],
)
def test_an_axis_may_be_a_key_of_a_nested_spec(axes: dict[str, Iterable[Any]]) -> None:
    spec = tiny_spec(avx512=True, roles="split", placement=PlacementSpec(policy="random", ratio=1.0))
    sweep = SweepSpec(arms=("+v",), baseline="+v", axes={key: tuple(values) for key, values in axes.items()})
    placements = [cell.spec.engine.placement for cell in plan_cells(spec, replace(sweep, control=False))]
    assert placements == [PlacementSpec(policy="random", ratio=ratio) for ratio in (0.25, 0.5)]


def test_axes_multiply_arms() -> None:
    axes = {"workload.prompt": (8, 16), "workload.batch": (1, 2)}
    cells = plan_cells(tiny_spec(), replace(LADDER, axes=axes, control=False))
    assert len({cell.key for cell in cells}) == len(cells) == 3 * 4


def _machine(**changes: Any) -> dict[str, Any]:
    path = data_folder("conf") / "machine" / "paper_a100.yaml"
    return dict(yaml.safe_load(path.read_text())) | changes


def test_a_model_and_a_machine_are_put_in_whole_before_what_they_hold_changes() -> None:
    model = to_plain(tiny_spec().model) | {"seed": 7}
    axes = {
        "machine.cores": (8, 36),
        "machine": ({"machine": _machine()}, {"machine": _machine(cores=12, gpus=2, name="other")}),
        "model": ({"model": model},),
    }
    cells = plan_cells(tiny_spec(avx512=True), SweepSpec(arms=("+v",), baseline="+v", control=False, axes=axes))
    machines = [cell.spec.machine for cell in cells if cell.spec.machine]
    assert {cell.spec.model.seed for cell in cells} == {7}
    assert [(one.name, one.cores) for one in machines] == [
        ("paper_a100", 8),
        ("other", 8),
        ("paper_a100", 36),
        ("other", 36),
    ]
    assert [one.sources["cores"] for one in machines] == [
        "changed by the request (paper_a100: 36)",
        "changed by the request (other: 12)",
        _machine()["sources"]["cores"],
        "changed by the request (other: 12)",
    ]
    assert _machine() == axes["machine"][0]["machine"]


def test_a_machine_of_none_is_the_one_here() -> None:
    axes = {"machine": ({"machine": _machine()}, {"machine": None})}
    cells = plan_cells(tiny_spec(), replace(LADDER, axes=axes, control=False))
    assert [cell.spec.machine is None for cell in cells] == [False] * 3 + [True] * 3


@pytest.mark.parametrize(
    ("axes", "says"),
    [
        ({"machine.cores": (8,)}, "sweep.axes.machine.cores: the machine here is measured as it is"),
        ({"machine.core": (8,), "machine": ({"machine": _machine()},)}, "sweep.axes.machine.core: no such key"),
        ({"machine.cores": (0,), "machine": ({"machine": _machine()},)}, "machine.cores=0: must be above 0"),
        ({"workload.promt": (1,)}, "sweep.axes.workload.promt: no such key"),
        ({"nothing.at.all": (1,)}, "no such key"),
        ({"engine.placement.rato": (1,)}, "sweep.axes.engine.placement.rato: no such key"),
        ({"engine.placement.ratio": (1.5,)}, "engine.placement.ratio=1.5: allowed are 0 to 1"),
        ({"engine.deferral.deeper": (1,)}, "engine.deferral.deeper: no such key"),
        ({"workload.prompt": (0,)}, "workload.prompt=0: must be at least 1"),
        ({"workload.prompt": (8, 8)}, "'base' and 'base' are the same cell"),
        ({"workload.prompt": ({"workload.prompt": 8, "workload.stepz": 1},)}, "workload.stepz: no such key"),
    ],
)
def test_bad_axis_is_named(axes: dict[str, tuple[Any, ...]], says: str) -> None:
    with pytest.raises(RequestError, match=says):
        plan_cells(tiny_spec(), replace(LADDER, axes=axes))


@given(st.integers(0, 50))
def test_every_round_visits_every_cell_once_in_the_order_that_a_resumed_run_has(number: int) -> None:
    cells = plan_cells(tiny_spec(), LADDER)
    order = turn_order(cells, number)
    assert sorted(cell.key for cell in order) == sorted(cell.key for cell in cells)
    assert order == turn_order(plan_cells(tiny_spec(), LADDER), number)


@given(count=st.integers(1, 9), block=st.integers(0, 5), seed=st.text(max_size=3))
def test_drawn_orders_are_balanced_over_places_and_neighbours(count: int, block: int, seed: str) -> None:
    rounds = 2 * count if count % 2 else count
    orders = [drawn_order(count, block * rounds + number, seed) for number in range(rounds)]
    placed = Counter(at for order in orders for at in enumerate(order))
    followed = Counter(pair for order in orders for pair in pairwise(order))
    assert (len(placed), len({*placed.values()})) == (count**2, 1)
    assert len(followed) == count * (count - 1) and len({*followed.values()}) <= 1


def test_drawn_orders_do_not_recur() -> None:
    """Walking back and forth gives two."""
    assert len({drawn_order(7, number, "a") for number in range(28)}) > 20
    assert drawn_order(7, 0, "a") != drawn_order(7, 0, "b")


def test_cells_that_share_weights_share_a_worker() -> None:
    cells = [*plan_cells(tiny_spec(), LADDER), *plan_cells(replace(tiny_spec(), model=_other_seed()), LADDER)]
    assert [len(group) for group in worker_groups(cells)] == [4, 4]


def _other_seed():  # type: ignore[no-untyped-def]
    return replace(tiny_spec().model, seed=1)


@given(expert_bytes=st.integers(1, 10**10), cache_bytes=st.integers(0, 10**10))
def test_one_round_exceeds_the_cache_by_a_quarter_unless_the_layer_is_tiny(expert_bytes: int, cache_bytes: int) -> None:
    copies = layer_copies(expert_bytes, cache_bytes)
    assert 1 <= copies <= 64
    assert copies == 64 or 4 * copies * expert_bytes > 5 * cache_bytes
    assert copies == 1 or 4 * (copies - 1) * expert_bytes <= 5 * cache_bytes


def test_a_layer_without_weights_is_refused() -> None:
    with pytest.raises(ValueError, match="expert_bytes=0: must be at least 1"):
        layer_copies(0, 1)
