"""The order in which two builds take turns, what each turn is called with, and which are left when going on."""

from __future__ import annotations

import shlex
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from ktbench.results import Log
from ktbench.run.alternating import read_alternation
from ktbench.spec.record import Header, Outcome, Part, Record
from tests.tiny import tiny_cell

CELLS = tuple(tiny_cell(label, avx512=label == "+v", amx=label == "+m") for label in ("base", "+v", "+m"))


def begin(name: str, *records: Record) -> None:
    """A run below `runs/` that planned CELLS and has these records."""
    header = Header(
        run=name, title="t", ablation="a", created="", command=("c",), cells=CELLS,
        parts=(Part(name="", title="t", baseline="base"),), measure=CELLS[0].spec.measure, code_id="c", env_id="e",
    )  # fmt: skip
    log = Log(Path("runs") / name)
    log.append(header, *records)
    log.close()


def record(cell: int, number: int, outcome: Outcome = Outcome.OK) -> Record:
    return Record(
        cell=CELLS[cell].key, label=CELLS[cell].label, round=number, outcome=outcome,
        samples_s=(0.5,) if outcome.timed else (), provenance="measured", code_id="c", env_id="e", worker_session="s",
        started="",
    )  # fmt: skip


def test_each_side_comes_first_once_in_two_rounds_and_not_in_turns() -> None:
    """Of what recurs every two rounds, the same side would meet the same."""
    asked = read_alternation(["HEAD~1", "HEAD", "measure.max_rounds=40"], "now")
    turns = list(asked.missing_rounds())
    assert [turn.round for turn in turns] == [number for number in range(40) for _ in "AB"]
    order = "".join("AB"[turn.side] for turn in turns)
    pairs = [order[at : at + 4] for at in range(0, len(order), 4)]
    assert {*pairs} == {"ABBA", "BAAB"}
    assert list(asked.missing_rounds()) == turns


def test_the_first_round_begins_a_run_and_the_others_go_on_with_it() -> None:
    asked = read_alternation(["v1", "v2", "+ablation=decode", "model=tiny", "measure.max_rounds=2"], "now")
    words = [turn.words for turn in asked.missing_rounds() if turn.side == 1]
    assert asked.runs == ("regress-now-a", "regress-now-b")
    same = ("sweep", "measure.max_minutes=1440", "+ablation=decode", "model=tiny")
    assert words == [
        (*same, "run_name=regress-now-b", "measure.min_rounds=1", "measure.max_rounds=1"),
        (*same, "resume=regress-now-b", "measure.min_rounds=2", "measure.max_rounds=2"),
    ]


def test_one_cell_is_a_run_and_twelve_rounds_are_usual() -> None:
    turns = list(read_alternation(["a", "b", "model=tiny"], "now").missing_rounds())
    assert {turn.words[0] for turn in turns} == {"run"}
    assert Counter(turn.side for turn in turns) == {0: 12, 1: 12}


def test_the_tolerance_is_for_the_comparison() -> None:
    asked = read_alternation(["a", "b", "model=tiny", "tolerance=0.1"], "now")
    assert asked.tolerance == ("tolerance=0.1",)
    assert not any("tolerance" in word for turn in asked.missing_rounds() for word in turn.words)
    assert "tolerance=0.1" in asked.command


def test_minutes_of_the_request_come_after_ours() -> None:
    turn = next(read_alternation(["a", "b", "measure.max_minutes=2"], "now").missing_rounds())
    assert turn.words[1:3] == ("measure.max_minutes=1440", "measure.max_minutes=2")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "name two commits"),
        (["HEAD"], "not 1"),
        (["a", "b", "c"], "not 3"),
        (["a", "b", "resume=x"], "regress resume=x: there is no run runs/regress-x-a"),
        (["a", "b", "resume_changed=true"], "regress resume_changed=true: "),
        (["a", "b", "run_name=x"], "run_name=x"),
        (["a", "b", "measure.min_rounds=3"], "measure.min_rounds=3"),
        (["a", "b", "measure.max_rounds=1"], "measure.max_rounds=1: must be a whole number from 2"),
        (["a", "b", "measure.max_rounds=many"], "measure.max_rounds=many: must be a whole number"),
    ],
)
def test_anything_else_is_refused_in_one_line(words: list[str], said: str) -> None:
    with pytest.raises(ValueError, match="^regress") as refused:
        read_alternation(words, "now")
    assert said in str(refused.value) and "\n" not in str(refused.value)


def test_what_was_interrupted_goes_on_with_the_turns_that_lack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    asked = read_alternation(["v1", "v2", "+ablation=decode", "sweep.arms=[base, +v]", "measure.max_rounds=3"], "then")
    assert not asked.is_begun
    never, rounds = record(2, 0, Outcome.UNSUPPORTED), [record(cell, number) for number in (0, 1) for cell in (0, 1)]
    begin("regress-then-a", never, *rounds)
    begin("regress-then-b", never, *rounds[:3])
    assert asked.is_begun
    again = read_alternation(shlex.split(asked.command), "now")
    assert (again.commits, again.overrides, again.runs) == (asked.commits, asked.overrides, asked.runs)
    turns = [("AB"[turn.side], turn.round) for turn in again.missing_rounds()]
    assert turns[0] == ("B", 1) and sorted(turns[1:]) == [("A", 2), ("B", 2)]
    assert all("resume=regress-then-" in turn.words[-3] for turn in again.missing_rounds())


def gone_on_with(*records: Record) -> list[tuple[int, int]]:
    """Side and round of the turns that lack where A and B have these records and 3 rounds are asked for."""
    for name in ("regress-then-a", "regress-then-b"):
        begin(name, *records)
    words = ["v1", "v2", "measure.max_rounds=3", "resume=then"]
    return [(turn.side, turn.round) for turn in read_alternation(words, "now").missing_rounds()]


def test_a_run_that_was_killed_before_its_plan_is_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    begin("regress-then-a", *(record(cell, 0) for cell in range(3)))
    Log(Path("runs/regress-then-b")).close()
    turns = list(read_alternation(["v1", "v2", "measure.max_rounds=2", "resume=then"], "now").missing_rounds())
    assert sorted((turn.round, "AB"[turn.side]) for turn in turns) == [(0, "B"), (1, "A"), (1, "B")]
    assert [turn.words[-3].partition("=")[0] for turn in turns] == ["run_name", "resume", "resume"]


def test_a_cell_that_failed_gets_its_chance_in_the_turns_that_others_lack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    others = [record(cell, number) for number in (0, 1) for cell in (0, 2)]
    assert sorted(gone_on_with(record(1, 0, Outcome.CRASHED), *others)) == [(0, 2), (1, 2)]


def test_where_only_what_failed_lacks_the_last_turn_alone_tries_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    others = [record(cell, number) for number in (0, 1, 2) for cell in (0, 2)]
    assert sorted(gone_on_with(record(1, 0, Outcome.CRASHED), *others)) == [(0, 2), (1, 2)]


@pytest.mark.parametrize("settled", ["simulated", "unsupported"])
def test_what_is_simulated_or_cannot_run_lacks_in_no_round(
    settled: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    once = (
        replace(record(1, 0), provenance="simulated") if settled == "simulated" else record(1, 0, Outcome.UNSUPPORTED)
    )
    assert gone_on_with(once, *(record(cell, number) for number in (0, 1, 2) for cell in (0, 2))) == []
