"""Lines of progress while a sweep runs: names that tell cells apart, and each cell shown as done once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ktbench.results.stopping import SweepCriterion
from ktbench.run.progress import RoundProgress, cell_names, names_in_part
from ktbench.spec.cells import plan_cells
from ktbench.spec.record import Outcome
from ktbench.spec.run_spec import MeasureSpec
from ktbench.spec.sweep import SweepSpec
from tests.report.synthetic import Arm, Store
from tests.tiny import tiny_spec


def test_a_cell_is_shown_once_as_done_and_until_then_as_open(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arms = (
        Arm(label="base", noise=0.001),
        Arm(label="+v", step_ms=50.0, noise=0.2),
        Arm(label="+m", outcome=Outcome.UNSUPPORTED, why="this processor has no AMX"),
    )
    run = Store(arms=arms, rounds=8, drift=0.0).write(tmp_path)
    cells, names = run.header.cells, cell_names(run.header.cells)
    criterion = SweepCriterion(cells, run.header.parts, MeasureSpec(), names)
    progress, rounds = RoundProgress(cells, names, MeasureSpec()), []
    for number in range(8):
        criterion.add(record for record in run.records if record.round == number)
        progress.round_ended(criterion)
        rounds.append(capsys.readouterr().err.splitlines())
    assert [below(lines, "done:") for lines in rounds] == [["+m"], [], [], [], [], ["base", "base"], [], []]
    assert [below(lines, "open:") for lines in rounds] == [["base", "+v", "base"]] * 5 + [["+v"]] * 3
    assert "AMX" in "\n".join(rounds[0])
    assert all("ms/step ±" in line for line in rounds[5] if line.startswith("  "))
    assert criterion.why() in rounds[7][-2]


def below(lines: list[str], heading: str) -> list[str]:
    """The arms listed below a heading."""
    if heading not in lines:
        return []
    rest = lines[lines.index(heading) + 1 :]
    return [line.split()[0] for line in rest[: next(n for n, line in enumerate(rest) if not line.startswith("  "))]]


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
