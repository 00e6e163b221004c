"""Reasoning tasks: right, wrong and tricky answers."""

from __future__ import annotations

import pytest

from tests.eval.livebench.asked import asked, score

NEW = "2024-11-25"


@pytest.mark.parametrize(
    ("answer", "worth"),
    [
        ("So **yes, no, yes**", 1),
        ("**Yes**, then **No**, then **Yes**.", 1),
        ("First **no, no, no**. No: **yes, no, yes**", 1),
        ("It is **Unknown** at first. **yes, no, yes**", 1),
        ("<solution>yes, no, yes</solution>", 1),
        ("**no, no, no** <solution>yes, no, yes</solution>", 1),
        (r"\boxed{\text{yes, no, yes}}", 1),
        ("the answer is yes, no, yes", 1),
        ("<think>**no, no, no**</think>**yes, no, yes**", 1),
        ("**yes, no, yes** <think>**no, no, no**</think>", 1),
        ("**no, yes, no**", 0),
        ("<solution>yes, no, yes, no</solution>", 0),
        ("<solution>no</solution> **yes, no, yes**", 0),
        ("**yes**", 0),
        ("yes and no and yes", 0),
        ("", 0),
    ],
)
def test_web_of_lies_v2(answer: str, worth: float) -> None:
    assert score(asked("web_of_lies_v2", "yes, no, yes"), answer) == worth


@pytest.mark.parametrize(
    ("answer", "worth"),
    [
        ("<solution>yes, no, unknown, no</solution>", 1),
        ("**yes, no, unknown, no**", 1),
        ("<solution>yes, no, unknown, yes</solution>", 0.75 / 2),
        ("<solution>no, yes, no, unknown</solution>", 0),
        ("<solution>yes, no</solution>", 0.5 / 2),
        ("", 0),
    ],
)
def test_web_of_lies_v3_counts_places(answer: str, worth: float) -> None:
    assert score(asked("web_of_lies_v3", "yes, no, unknown, no"), answer) == worth


@pytest.mark.parametrize(
    ("truth", "answer", "worth"),
    [
        ("fantasy movies", "***fantasy movies***", 1),
        ("fantasy movies", "***Fantasy***", 1),
        ("d&b", "They like ***d&b***.", 1),
        ("security-guard", "***teacher*** no, ***security-guard***", 1),
        ("3", "***three***", 1),
        ("3", "The position is 3.", 1),
        ("3", "The position is **three**", 1),
        ("3", "***2***", 0),
        ("3", "***3*** or rather ***4***", 0),
        ("3", "3 is the position", 0),
        ("movies", "***fantasy movies***", 0),
        ("3", "", 0),
    ],
)
def test_zebra_puzzle_asked_for_one_word(truth: str, answer: str, worth: float) -> None:
    assert score(asked("zebra_puzzle", truth), answer) == worth


@pytest.mark.parametrize(
    ("answer", "worth"),
    [
        ("<solution>1, soy-milk, police-officer, crime</solution>", 1),
        ("<solution>1, Soy milk, the police officer, CRIME</solution>", 1),
        (r"\boxed{1, soy-milk, police-officer, crime}", 1),
        (r"\boxed{\text{1, soy-milk, police-officer, crime}}", 1),
        ("Well,\n1, soy-milk, police-officer, crime\nas shown.", 1),
        ("<solution>2, tea, x, y</solution> <solution>1, soy-milk, police-officer, crime</solution>", 1),
        ("<solution>1, soy-milk, teacher, crime</solution>", 0.75 / 2),
        ("<solution>soy-milk, 1, crime, police-officer</solution>", 0),
        ("<solution>1</solution>", 0.25 / 2),
        ("1, soy-milk and crime", 0),
        ("", 0),
    ],
)
def test_zebra_puzzle_asked_for_a_list(answer: str, worth: float) -> None:
    assert score(asked("zebra_puzzle", "1, soy-milk, police-officer, crime", released=NEW), answer) == worth


@pytest.mark.parametrize(
    ("truth", "answer", "worth"),
    [
        ("4", "**4**", 1),
        ("4", "**Four**", 1),
        ("4", "**4** pieces, by **two** cuts and **one** turn", 1),
        ("4", "**4**, **a**, **b**, **c**", 0),
        ("4", "**14**", 0),
        ("4", r"hence \boxed{4}", 1),
        ("4", "4", 0),
        ("square pyramid", "**Square pyramid.**", 1),
        ("square pyramid", "**square**", 0),
        ("tetrahedra", "**two tetrahedra**", 1),
        ("tetrahedron", "**a regular tetrahedron**", 1),
        ("triangle", "**it is certainly not any kind of triangle**", 0),
        ("4", "", 0),
    ],
)
def test_spatial(truth: str, answer: str, worth: float) -> None:
    assert score(asked("spatial", truth), answer) == worth


@pytest.mark.parametrize(
    ("answer", "worth"),
    [
        ("<solution>The green box.</solution>", 1),
        ("I think so.\ngreen box", 1),
        ("green box\nno, I do not know", 0),
        ("<solution>red box</solution> green box", 0),
        ("", 0),
    ],
)
def test_theory_of_mind(answer: str, worth: float) -> None:
    assert score(asked("theory_of_mind", "green box"), answer) == worth


@pytest.mark.parametrize(
    ("answer", "worth"),
    [
        ("<solution>12\n34</solution>", 1),
        ("<solution>1 2 3 4</solution> <solution>9999</solution>", 1),
        ("<solution>9999</solution> <solution>1234</solution>", 0),
        ("1234", 0),
        ("", 0),
    ],
)
def test_sudoku_takes_the_first_solution(answer: str, worth: float) -> None:
    assert score(asked("sudoku", "1234"), answer) == worth


@pytest.mark.parametrize(
    ("answer", "worth"),
    [
        ("<solution>(3, -2)</solution>", 1),
        ("<solution>3,-2</solution>", 1),
        ("<solution>0,0</solution><solution> 3 , -2 </solution>", 1),
        ("<solution>-2, 3</solution>", 0),
        ("<solution>3.0, -2.0</solution>", 0),
        ("<solution>north</solution>", 0),
        ("(3, -2)", 0),
        ("", 0),
    ],
)
def test_logic_with_navigation(answer: str, worth: float) -> None:
    assert score(asked("logic_with_navigation", "(3, -2)"), answer) == worth
