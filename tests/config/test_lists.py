"""Comma lists on the command line: axes before all others, arms where they name features or systems, parts."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ktbench.config import Request, RequestPart, compose, freeze
from ktbench.config.lists import split_lists
from ktbench.spec.cells import plan_cells
from ktbench.spec.errors import RequestError
from ktbench.spec.record import Cell


def requested(*overrides: str) -> Request:
    return freeze(compose(overrides))


def part_of(*overrides: str) -> RequestPart:
    (part,) = requested(*overrides).parts
    return part


def cells_of(*overrides: str) -> tuple[Cell, ...]:
    part = part_of(*overrides)
    return plan_cells(part.spec, part.sweep)


def test_a_list_alone_is_a_sweep_of_the_cell_that_the_overrides_describe() -> None:
    request = requested("workload.prompt=32,64", "engine.avx512=true", "engine.dynamic=true")
    (part,) = request.parts
    assert request.is_sweep and request.title == part.title == "+v+d over prompt"
    assert (part.sweep.arms, part.sweep.baseline, part.sweep.figure) == (("+v+d",), "+v+d", "depth")
    cells = plan_cells(part.spec, part.sweep)
    assert [(cell.label, cell.spec.workload.prompt) for cell in cells] == [
        ("+v+d", 32),
        ("+v+d (A/A)", 32),
        ("+v+d", 64),
        ("+v+d (A/A)", 64),
    ]


def test_a_list_comes_before_the_ablations_axes_and_replaces_its_own() -> None:
    axes = part_of("+ablation=depth", "workload.batch=1,2", "precision=int8,bf16").sweep.axes
    assert list(axes.items()) == [
        ("workload.batch", (1, 2)),
        ("precision", ("int8", "bf16")),
        ("workload.prompt", (64, 512, 2048, 8192)),
    ]
    assert part_of("+ablation=depth", "workload.prompt=32,64").sweep.axes == {"workload.prompt": (32, 64)}


def test_what_goes_with_a_value_stays_with_it() -> None:
    int8 = {"precision": "int8", "device_precision": "int8"}
    axes = part_of("+ablation=lean", "precision=int8,q8_0,int4").sweep.axes
    assert axes["precision"] == (int8, "q8_0", {"precision": "int4_g32", "device_precision": "int4_g32"})
    assert part_of("+ablation=lean", "precision=int8").sweep.axes == {"precision": (int8,)}
    dense = part_of("+ablation=lean", "precision=int8,bf16", "device_precision=int8")
    assert dense.sweep.axes == {"precision": ("int8", "bf16")}
    assert {cell.spec.device_precision for cell in plan_cells(dense.spec, dense.sweep)} == {"int8"}


@pytest.mark.parametrize(
    ("overrides", "arms"),
    [
        (["engine.avx512=true", "engine.deferral=0,1,auto"], ("+v", "+v deferral=1", "+v deferral=auto")),
        (["engine.avx512=false,true"], ("base", "+v")),
        (["system=llama.cpp,ktbench", "engine.avx512=true"], ("llama.cpp", "+v")),
        (
            ["system=ktbench,transformers", "peer.implementation=eager,grouped_mm"],
            ("base", "transformers eager", "transformers grouped_mm"),
        ),
    ],
)
def test_lists_of_features_and_systems_are_arms(overrides: list[str], arms: tuple[str, ...]) -> None:
    sweep = part_of(*overrides).sweep
    assert (sweep.arms, sweep.baseline, sweep.axes, sweep.title) == (arms, arms[0], {}, ", ".join(arms))


def test_systems_run_at_every_point_of_the_other_lists() -> None:
    cells = cells_of("system=ktbench,llama.cpp", "engine.avx512=true", "precision=bf16,int4", "sweep.control=false")
    assert [(cell.spec.system, cell.spec.engine.avx512, cell.spec.precision) for cell in cells] == [
        ("ktbench", True, "bf16"),
        ("llama.cpp", False, "bf16"),
        ("ktbench", True, "int4_g32"),
        ("llama.cpp", False, "int4_g32"),
    ]


def test_several_ablations_are_parts_of_one_sweep() -> None:
    request = requested("+ablation=decode,kernels/domains", "measure.goal=0.2")
    assert [part.name for part in request.parts] == ["decode", "domains"]
    assert (request.sweep.name, request.measure.goal) == ("decode_domains", 0.2)
    assert requested("ablation=decode,prefill", "sweep.name=mine").sweep.name == "mine"


def test_a_list_is_an_axis_of_every_part() -> None:
    for part in requested("+ablation=decode,prefill", "workload.batch=1,2").parts:
        assert part.sweep.axes == {"workload.batch": (1, 2)}


@pytest.mark.parametrize(
    ("word", "values"),
    [
        ("workload.prompt=range(8,25,8)", [8, 16, 24]),
        ("workload.prompt=choice(8,16)", [8, 16]),
        ("workload.chunk=null,4", [None, 4]),
        ("engine.placement.ratio=0,0.5", [0, 0.5]),
        ("workload.trace='a,b',\"c\"", ["a,b", "c"]),
        ("engine.placement={policy:random,ratio:1},null", [{"policy": "random", "ratio": 1}, None]),
        ("workload.routing=[a,'b'],c", [["a", "b"], "c"]),
    ],
)
def test_lists_are_hydras(word: str, values: list[Any]) -> None:
    words = split_lists([word], ())
    assert words.lists == {word.partition("=")[0]: values}
    assert split_lists(words.overrides, ()).lists == {}


@pytest.mark.parametrize("word", ["run_name='a,b'", 'sweep.title="a, b"', "sweep.arms=[base,+v]", "x={a:1,b:2}"])
def test_quoted_commas_and_brackets_stay_what_they_are(word: str) -> None:
    words = split_lists([word], ())
    assert (words.overrides, words.lists) == ((word,), {})


@given(st.lists(st.one_of(st.integers(), st.booleans(), st.sampled_from(["a", "b c", "x'y", "q,r"])), min_size=2))
def test_any_values_come_back_in_order(values: list[Any]) -> None:
    def written(value: Any) -> str:
        return '"' + value + '"' if isinstance(value, str) else str(value).lower()

    words = split_lists([f"workload.prompt={','.join(map(written, values))}"], ())
    assert words.lists == {"workload.prompt": values}


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["workload=decode,prefill"], "workload takes one value, run sweep once for each"),
        (["inject=lean,experts"], "inject takes one value"),
        (["model.layers=2,4"], "model.layers=2,4: model.layers takes one value"),
        (["measure.goal=0.1,0.2"], "lists are for keys of workload, engine, system, peer, precision"),
        (["sweep.control=true,false"], "sweep.control takes one value"),
        (["resume=a,b"], "resume takes one value"),
        (["sweep.arms=base,+v"], '"sweep.arms=[base,+v]"'),
        (["system=ktbench,lama.cpp"], "did you mean llama.cpp?"),
        (["workload.promp=1,2"], "workload.promp: unknown key, did you mean workload.prompt?"),
        (["+workload.promp=1,2"], "workload.promp: unknown key"),
        (["workload.prompt=interval(1,2)"], "allowed are A,B,C and range(START,STOP,STEP)"),
        (["workload.prompt=glob(*)"], "allowed are A,B,C and range(START,STOP,STEP)"),
        (["workload.prompt=range(2,2)"], "has no values, allowed are 1 to 256"),
        (["workload.prompt=range(0,1000)"], "has more than 256 values"),
        (["workload.prompt=1,2", "workload.prompt=3"], "workload.prompt is set twice"),
        (["workload.prompt=0,1"], "workload.prompt=0: must be at least 1"),
        (["workload.prompt=1,1"], "are the same cell"),
        (["workload.prompt=1,two"], "workload.prompt: expected int, got str"),
        (["system=ktbench,tgi"], "arm 'tgi'"),
        (["engine.deferral=0,9"], "engine.deferral=9: qwen3_30b_a3b has top_k=8"),
        (["+ablation=decode", "engine.avx512=true,false"], "engine.avx512: is set by the arms of the sweep"),
        (["+ablation=decode,kernels"], "kernels has parts itself"),
        (["+ablation=decode,decod"], "ablation=decod: unknown, did you mean decode"),
    ],
)
def test_mistake_is_one_line(overrides: list[str], says: str) -> None:
    with pytest.raises(RequestError) as raised:
        cells_of(*overrides)
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)
