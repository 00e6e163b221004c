"""The order in which two builds take turns, and what each turn is called with."""

from __future__ import annotations

from collections import Counter

import pytest

from ktbench.launch.alternating import read_alternation


def test_sides_alternate_and_walk_back() -> None:
    asked = read_alternation(["HEAD~1", "HEAD", "measure.max_rounds=4"], "now")
    turns = list(asked.turns())
    assert "".join("AB"[turn.side] for turn in turns) == "ABBAABBA"
    assert [turn.round for turn in turns] == [0, 0, 1, 1, 2, 2, 3, 3]


def test_the_first_round_begins_a_run_and_the_others_go_on_with_it() -> None:
    asked = read_alternation(["v1", "v2", "+ablation=decode", "model=tiny", "measure.max_rounds=2"], "now")
    words = [turn.words for turn in asked.turns() if turn.side == 1]
    assert asked.runs == ("regress-now-a", "regress-now-b")
    same = ("sweep", "measure.max_minutes=1440", "+ablation=decode", "model=tiny")
    assert words == [
        (*same, "run_name=regress-now-b", "measure.min_rounds=1", "measure.max_rounds=1"),
        (*same, "resume=regress-now-b", "measure.min_rounds=2", "measure.max_rounds=2"),
    ]


def test_one_cell_is_a_run_and_twelve_rounds_are_usual() -> None:
    turns = list(read_alternation(["a", "b", "model=tiny"], "now").turns())
    assert {turn.words[0] for turn in turns} == {"run"}
    assert Counter(turn.side for turn in turns) == {0: 12, 1: 12}


def test_minutes_of_the_request_come_after_ours() -> None:
    turn = next(read_alternation(["a", "b", "measure.max_minutes=2"], "now").turns())
    assert turn.words[1:3] == ("measure.max_minutes=1440", "measure.max_minutes=2")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "name two commits"),
        (["HEAD"], "not 1"),
        (["a", "b", "c"], "not 3"),
        (["a", "b", "resume=x"], "regress resume=x: is set round by round"),
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
