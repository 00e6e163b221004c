"""Speeds of one run beside the answers of another."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest

from ktbench.cli import main
from ktbench.report.joined import joined
from ktbench.results import Run, read_run
from ktbench.results.accuracy import accuracy_rows
from ktbench.results.rows import rows_of
from tests.report.accuracy_stores import BASE, SMALL, Answering, deferring
from tests.report.synthetic import Arm, Store

SLOW, FAST, BAD = "+v+d", "+v+d deferral=2", "+v+d skipping=6"
SPEEDS = Store(
    run="slice",
    rounds=6,
    steps=1,
    arms=(Arm(label=SLOW, step_ms=100), Arm(label=FAST, step_ms=80), Arm(label=BAD, step_ms=110), Arm(label="+v")),
)
ANSWERS = replace(
    SMALL, run="nano", arms=(BASE, replace(deferring(2), loses=0.5), Answering(label=BAD, loses=0.9), deferring(3))
)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a timed run and an evaluation below `runs/`."""
    monkeypatch.chdir(tmp_path)
    SPEEDS.write(tmp_path / "runs")
    ANSWERS.write(tmp_path / "runs")
    return tmp_path / "runs"


def both(home: Path) -> tuple[Run, Run]:
    return read_run(home / "slice"), read_run(home / "nano")


def test_an_arm_has_the_speed_of_one_run_and_the_score_of_the_other(home: Path) -> None:
    timed, answered = both(home)
    speeds = {row.label: row.tokens_per_s for row in rows_of(timed)}
    scores = {row.row.label: row.score for row in accuracy_rows(answered)}
    for runs in ((timed, answered), (answered, timed)):
        found = joined(*runs)
        assert [row.row.label for row in found.rows] == [SLOW, FAST, BAD]
        assert all(row.row.tokens_per_s == speeds[row.row.label] for row in found.rows)
        assert all(row.score == scores[row.row.label] for row in found.rows)
        assert found.alone == {"slice": ("+v",), "nano": ("+v+d deferral=3",)}


def test_files_say_of_each_value_where_it_is_from(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "slice", "with=nano"]) == 0
    out = capsys.readouterr().out
    report = home / "slice" / "report"
    assert out.startswith((report / "joined-nano.md").read_text())
    (heading,) = [line for line in out.splitlines() if line.startswith("| arm")]
    speed, score = (next(one for one in heading.split("|") if word in one) for word in ("tokens/s", "score"))
    assert "slice" in speed and "Qwen3-30B-A3B" in speed and "measured" in speed
    assert "nano" in score and "measured" in score
    with (report / "joined-nano.csv").open() as file:
        lines = {line["label"]: line for line in csv.DictReader(file)}
    assert [lines[name]["is_pareto"] for name in (SLOW, FAST, BAD)] == ["True", "True", "False"]
    assert {(line["speed_model"], line["score_model"]) for line in lines.values()} == {("qwen3_30b_a3b", "nano")}
    rows = json.loads((report / "joined-nano.json").read_text())["rows"]
    assert [row["label"] for row in rows] == [SLOW, FAST, BAD]
    assert main(["report", "slice", "with=nano", "--json"]) == 0
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == rows


def test_an_arm_without_a_speed_is_shown_with_its_reason(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    failing = replace(SPEEDS, run="cut", rounds=0)
    failing.write(home)
    assert main(["report", "cut", "with=nano"]) == 0
    assert "cut: not measured" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("stores", "says"),
    [
        ((SPEEDS, replace(SPEEDS, run="other")), "neither is one"),
        ((ANSWERS, replace(ANSWERS, run="other")), "both are one"),
        ((replace(SPEEDS, arms=(Arm(label="+m"),)), ANSWERS), "no arm is in both"),
        ((replace(SPEEDS, batches=(1, 2)), ANSWERS), "has several cells of +v+d"),
        ((replace(SPEEDS, precisions=("int8",)), ANSWERS), "precision of +v+d is int8 in slice and bf16 in nano"),
    ],
)
def test_what_cannot_be_joined_is_refused_in_a_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    stores: tuple[Store, Store],
    says: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    names = [store.write(tmp_path / "runs").folder.name for store in stores]
    assert main(["report", names[0], f"with={names[1]}"]) == 2
    err = capsys.readouterr().err
    assert says in err and err.count("\n") == 1
    assert not (tmp_path / "runs" / names[0] / "report").exists()


def test_a_format_beside_it_is_refused(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "slice", "csv", "with=nano"]) == 2
    assert "leave out csv" in capsys.readouterr().err
    assert main(["report", "slice", "with=nope"]) == 2
