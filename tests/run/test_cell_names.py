"""Cells can be told apart on a terminal, with no more words than that takes."""

from __future__ import annotations

from dataclasses import replace

from ktbench.run.progress import cell_names, names_in_part
from ktbench.spec.cells import plan_cells
from ktbench.spec.sweep import SweepSpec
from tests.tiny import tiny_spec


def test_what_varies_is_named_and_nothing_else() -> None:
    ladder = SweepSpec(arms=("base", "+v"))
    assert list(names_in_part(plan_cells(tiny_spec(), ladder)).values()) == ["base", "+v", "base (A/A)"]
    axes = replace(ladder, axes={"workload.prompt": (8, 16)}, control=False)
    assert list(names_in_part(plan_cells(tiny_spec(), axes)).values()) == [
        "base (prompt 8)",
        "+v (prompt 8)",
        "base (prompt 16)",
        "+v (prompt 16)",
    ]


def test_a_precision_that_arms_name_is_not_said_twice() -> None:
    worded = SweepSpec(arms=("base", "+v int8"), control=False)
    assert list(names_in_part(plan_cells(tiny_spec(), worded)).values()) == ["base", "+v int8"]
    varied = SweepSpec(arms=("+v",), baseline="+v", axes={"precision": ("bf16", "int8")}, control=False)
    names = names_in_part(plan_cells(tiny_spec(), varied))
    assert list(names.values()) == ["+v (precision bf16)", "+v (precision int8)"]


def test_the_same_cell_in_two_parts_has_two_names() -> None:
    sweep = SweepSpec(arms=("base",))
    cells = [*plan_cells(tiny_spec(), sweep, "one"), *plan_cells(tiny_spec(), sweep, "two")]
    assert list(cell_names(cells).values()) == ["one base", "one base (A/A)", "two base", "two base (A/A)"]
    assert set(cell_names(cells)) == {cell.key for cell in cells}


def test_a_precision_that_brings_another_along_is_named_once() -> None:
    values = tuple({"precision": name, "device_precision": name} for name in ("bf16", "q8_0"))
    sweep = SweepSpec(arms=("llama.cpp", "+v+l"), baseline="llama.cpp", axes={"precision": values}, control=False)
    assert list(names_in_part(plan_cells(tiny_spec(), sweep)).values()) == [
        "llama.cpp (precision bf16)",
        "+v+l (precision bf16)",
        "llama.cpp (precision q8_0)",
        "+v+l (precision q8_0)",
    ]
