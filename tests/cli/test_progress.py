"""What a person sees while a sweep runs: rows appear once, when they are done."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ktbench.cli.progress import round_ended
from ktbench.results import Run
from ktbench.spec.record import Outcome
from ktbench.spec.run_spec import MeasureSpec
from tests.report.layers import LayerArm, LayerPart, LayerStore
from tests.report.peer_stores import DECODE
from tests.report.synthetic import Arm, Store

ARMS = (
    Arm(label="base", noise=0.001),
    Arm(label="+v", step_ms=50.0, noise=0.2),
    Arm(label="+m", outcome=Outcome.UNSUPPORTED, why="this processor has no AMX"),
)


def seen(run: Run, rounds: int, capsys: pytest.CaptureFixture[str]) -> list[list[str]]:
    """The lines after each round."""
    said = []
    for number in range(rounds):
        round_ended(run, MeasureSpec(), number)
        said.append(capsys.readouterr().err.splitlines())
    return said


def below(lines: list[str], heading: str) -> list[str]:
    """The arms listed below a heading."""
    if heading not in lines:
        return []
    rest = lines[lines.index(heading) + 1 :]
    ends = [n for n, line in enumerate(rest) if line.endswith(":") or "rows done" in line]
    return [line.split()[0] for line in rest[: ends[0]]]


def test_a_row_is_shown_once_as_done_and_until_then_as_open(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rounds = seen(Store(arms=ARMS, rounds=8, drift=0.0).write(tmp_path), 8, capsys)
    assert [below(lines, "done:") for lines in rounds] == [["+m"], [], [], [], [], ["base", "base"], [], []]
    assert [below(lines, "open:") for lines in rounds] == [["base", "+v", "base"]] * 5 + [["+v"]] * 3
    assert [line for lines in rounds for line in lines if "rows done" in line] == [
        *["1 of 4 rows done"] * 5,
        *["3 of 4 rows done"] * 3,
    ]


def test_points_keep_their_headings_when_others_are_done(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = replace(DECODE, arms=DECODE.arms[:1], rounds=6, drift=0.0).write(tmp_path)
    after = seen(run, 6, capsys)[5]
    assert [line for line in after if line.startswith("precision ")] == [
        "precision bf16:",
        "precision q8_0:",
        "precision q4_0:",
    ]
    lines = [line for line in after if "tokens/s" in line]
    assert len({line.index("ms/step") for line in lines}) == 1
    assert lines[0].startswith("llama.cpp ")


def test_parts_list_what_is_done_and_count_the_rest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arms = (LayerArm(label="+v", noise=0.001), LayerArm(label="+v+d", noise=0.3))
    parts = tuple(LayerPart(name=name, arms=arms, tokens=(1,), control=False) for name in ("one", "two"))
    rounds = seen(LayerStore(parts=parts, rounds=6).write(tmp_path), 6, capsys)
    assert rounds[0][1:3] == ["one: 0 of 2 rows done", "two: 0 of 2 rows done"]
    assert below(rounds[5], "one, done:") == below(rounds[5], "two, done:") == ["+v"]
    assert "two: 1 of 2 rows done" in rounds[5]
