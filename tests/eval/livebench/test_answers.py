"""What right, wrong and tricky answers to LiveBench's tasks are worth."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from ktbench.eval.livebench.graders import grade_answer
from ktbench.eval.livebench.mathematics import option_text
from ktbench.eval.livebench.question import LiveQuestion
from tests.eval.livebench.questions import live_question, score

OPTIONS = (
    r"How far? $\textbf{(A) }20\qquad\textbf{(B)}~\frac{9}{25}\qquad\textbf{(C) }1,250 \qquad"
    r"\textbf{(D) }26\\ \textbf{(E) }\sqrt3$ If you"
)
POLYNOMIAL = live_question("AMPS_Hard", r"-\lambda ^3+8 \lambda ^2+7", subtask="amps_hard_characteristic_polynomial")
FIXED = "We study graphs, and more. They are finite."
WORDS = "Bass, Trout, Pike, Carp, ant, drill, island, opal"
PLOT = "Anna leaves home. She meets a dragon in the hills. Both of them fly to the sea"
JOIN = '{"name": "a1", "zip": "b2", "city": "c3"}'
KEY = "max_consecutive_growth_months"
EVENTS = f'[{{"user_id": "u1", "{KEY}": 3}}, {{"user_id": "u2", "{KEY}": 5}}]'
TABLE = "id,name\n1,Ann\n2,Bob\n"


def rated(question: LiveQuestion, worth: Mapping[str, float]) -> list[Any]:
    return [pytest.param(question, answer, value, id=f"{question.task}: {answer}") for answer, value in worth.items()]


CASES = [
    *rated(
        live_question("web_of_lies_v2", "yes, no, yes"),
        {
            "So **yes, no, yes**": 1,
            "**Yes**, then **No**, then **Yes**.": 1,
            "First **no, no, no**. No: **yes, no, yes**": 1,
            "It is **Unknown** at first. **yes, no, yes**": 1,
            "<solution>yes, no, yes</solution>": 1,
            "**no, no, no** <solution>yes, no, yes</solution>": 1,
            r"\boxed{\text{yes, no, yes}}": 1,
            "the answer is yes, no, yes": 1,
            "<think>**no, no, no**</think>**yes, no, yes**": 1,
            "**yes, no, yes** <think>**no, no, no**</think>": 1,
            "**no, yes, no**": 0,
            "<solution>yes, no, yes, no</solution>": 0,
            "<solution>no</solution> **yes, no, yes**": 0,
            "**yes**": 0,
            "yes and no and yes": 0,
            "": 0,
        },
    ),
    *rated(
        live_question("web_of_lies_v3", "yes, no, unknown, no"),
        {
            "<solution>yes, no, unknown, no</solution>": 1,
            "**yes, no, unknown, no**": 0,  # outside tags and boxes three words are found, the last three
            "<solution>yes, no, unknown, yes</solution>": 0.75 / 2,
            "<solution>no, yes, no, unknown</solution>": 0,
            "<solution>yes, no</solution>": 0.5 / 2,
            "": 0,
        },
    ),
    *rated(
        live_question("zebra_puzzle", "1, soy-milk, police-officer, crime", released="2024-11-25"),
        {
            "<solution>1, soy-milk, police-officer, crime</solution>": 1,
            "<solution>1, Soy milk, the police officer, CRIME</solution>": 1,
            r"\boxed{1, soy-milk, police-officer, crime}": 1,
            r"\boxed{\text{1, soy-milk, police-officer, crime}}": 1,
            "Well,\n1, soy-milk, police-officer, crime": 1,
            "Well,\n1, soy-milk, police-officer, crime\nas shown.": 0,
            "1. <solution>1</solution> 2. <solution>soy-milk</solution> <solution>police-officer, crime</solution>": 1,
            "<SOLUTION>1, soy-milk, police-officer, crime</SOLUTION>": 1,  # as the last line
            "<SOLUTION>1, soy-milk, police-officer, crime</SOLUTION>\nDone.": 0,
            "<solution>2, tea, x, y</solution> <solution>1, soy-milk, police-officer, crime</solution>": 1,
            "<solution>1, soy-milk, teacher, crime</solution>": 0.75 / 2,
            "<solution>soy-milk, 1, crime, police-officer</solution>": 0,
            "<solution>1</solution>": 0.25 / 2,
            "1, soy-milk and crime": 0,
            "": 0,
        },
    ),
    *rated(
        live_question("theory_of_mind", "green box"),
        {
            "<solution>The green box.</solution>": 1,
            "I think so.\ngreen box": 1,
            "green box\nno, I do not know": 0,
            "<solution>red box</solution> green box": 0,
            "": 0,
        },
    ),
    *rated(
        live_question("house_traversal", "Jim Ida Bo"),
        {
            "**Jim**, **Ida**, **Bo**": 1,
            "***jim ida bo***": 1,
            "**x** **Jim, then Ida, then Bo**": 1,
            "**Jim**, **Ida**, **Bo.**": 0,
            "**Ida Jim Bo**": 0,
            "**Jim Ida Bo** **is it**": 0,
            "Jim Ida Bo": 0,
            "": 0,
        },
    ),
    *rated(
        live_question("sudoku", "1234"),
        {
            "<solution>12\n34</solution>": 1,
            "<solution>1 2 3 4</solution> <solution>9999</solution>": 1,
            "<solution>9999</solution> <solution>1234</solution>": 0,
            "1234": 0,
            "": 0,
        },
    ),
    *rated(
        live_question("logic_with_navigation", "(3, -2)"),
        {
            "<solution>(3, -2)</solution>": 1,
            "<solution>3,-2</solution>": 1,
            "<solution>0,0</solution><solution> 3 , -2 </solution>": 1,
            "<solution>-2, 3</solution>": 0,
            "<solution>3.0, -2.0</solution>": 0,
            "<solution>north</solution>": 0,
            "(3, -2)": 0,
            "": 0,
        },
    ),
    *rated(
        live_question("typos", FIXED),
        {
            FIXED: 1,
            f"Here it is:\n{FIXED}\nDone.": 1,
            "<solution>We study graphs, and more. They are finite.</solution>": 1,
            f"--- {FIXED} ---": 1,
            f"{FIXED} --- We studdy graphs ---": 1,  # no blank after the last mark
            f"{FIXED} --- We studdy graphs --- so": 0,
            f"{FIXED} <solution>We study graphs</solution>": 0,
            FIXED.replace("study", "studdy"): 0,
            FIXED.replace(",", ""): 0,
            "": 0,
        },
    ),
    *rated(
        live_question("connections", WORDS),
        {
            "**bass, trout, pike, carp, ant, drill, island, opal**": 1,
            "**ant, island, drill, opal, carp, trout, pike, bass**": 1,
            "**bass, trout,\npike, carp, ant, drill, island, opal**": 1,
            "**guess** then **bass, trout, pike, carp, opal, drill, island, eel**": 0.5,
            "**bass, trout, pike, carp** and **ant, drill, island, opal**": 0.5,
            "**ant, trout, pike, carp, bass, drill, island, opal**": 0,
            "bass, trout, pike, carp, ant, drill, island, opal": 0,
            "<solution>bass, trout, pike, carp, ant, drill, island, opal</solution>": 0,
            "": 0,
        },
    ),
    *rated(
        live_question("connections", WORDS, released="2024-11-25"),
        {
            "<solution>bass, trout, pike, carp, ant, drill, island, opal</solution>": 1,
            r"\boxed{\text{bass, trout, pike, carp, ant, drill, island, opal}}": 1,
            "<solution>ant, trout, pike, carp, bass, drill, island, opal</solution>": 0,
            "<solution>x, bass, trout, pike, carp, ant, drill, island, opal</solution>": 0,
            "<solution>bass, trout, pike, carp</solution>": 0.5,
            "**bass, trout, pike, carp, ant, drill, island, opal**": 0,
            "": 0,
        },
    ),
    *rated(
        live_question("plot_unscrambling", PLOT),
        {
            f"<PLOT_SUMMARY> {PLOT}.": 1,
            f"I begin. <PLOT_SUMMARY>\n{PLOT}.\n</PLOT_SUMMARY>": 1,
            "<PLOT_SUMMARY>Anna left home. She met a dragon in hills. They both flew to the sea.": 1,
            "<PLOT_SUMMARY>She meets a dragon in the hills. Both of them fly to the sea. Anna leaves home.": 1 / 3,
            "<PLOT_SUMMARY>Anna leaves home. Both of them fly to the sea. She meets a dragon in the hills.": 1 / 3,
            "<PLOT_SUMMARY>": 0,
            "": 0,
        },
    ),
    *rated(
        live_question("math_comp", "C", prompt=OPTIONS),
        {
            "CCCCC": 1,
            "Hence CCCC": 1,
            "<solution>CCCCC</solution>": 1,
            r"\boxed{C}": 1,
            r"\boxed{\textbf{(C)}}": 1,
            "it is\n(C)": 1,
            "So the answer is (C).": 1,
            r"\boxed{c}": 1,
            "<solution>ccccc</solution>": 1,
            "it is\n**C**\n": 1,
            "the distance is 1,250 miles": 1,
            "it would be 1,250 if that were all, but there is a long way to go from here": 0,
            "CCC": 0,
            "BBBBB": 0,
            "<solution>B</solution>": 0,
            r"\boxed{B}": 0,
            "": 0,
        },
    ),
    *rated(
        live_question("math_comp", "025"),
        {
            "so the answer is 025": 1,
            r"\boxed{025}.": 1,
            "so the answer is 25": 0,
            "025 " + "and so on " * 6: 0,
            "": 0,
        },
    ),
    *rated(
        live_question("olympiad", "3,1,2,4"),
        {
            "Since …\n\nAnswer: 3, 1, 2, 4": 1,
            "**Answer:** 3,1,2,4": 1,
            "Answer:\n3, 1, 2, 4\nThank you": 1,
            "Answer: 1\nNo, answer: <expression 3>, <expression 1>, <expression 2>, <expression 4>": 1,
            r"\boxed{3, 1, 2, 4}": 1,
            "by lemma 7\n3, 1, 2, 4": 1,
            "Answer: 3, 2, 1, 4": 0.5,
            "Answer: 3, 1, 2": 0.75,
            "Answer: 3, 1, 2, 4, 5": 0.8,
            "Answer: 5, 6, 7, 8": 0,
            "Answer: none": 0,
            "": 0,
        },
    ),
    *rated(
        live_question("integrals_with_game", "3/4"),
        {
            "<solution>3/4</solution>": 1,
            r"<solution>\boxed{\frac{3}{4}}</solution>": 1,
            r"\boxed{0.75}": 1,
            "you win 3/4": 1,
            r"\boxed{-\frac34}": 0,
            "<solution>5/4</solution>": 0,
            "<solution>13/4</solution>": 1,  # the last 200 characters hold the truth
            "<solution>many</solution>": 0,
            "": 0,
        },
    ),
    *rated(
        live_question("tablejoin", JOIN),
        {
            JOIN: 1,
            "{'name': 'a1', 'zip': 'b2', 'city': 'c3', 'street': None}": 1,
            "{'name': 'a1', 'zip': 'b2', 'city': 'c3', 'street': null}": 1,
            f"First {{'x': 'y'}}, but then\n```json\n{JOIN}\n```\nso {{it}} is.": 1,
            '{"name": "a1"}': 0.5,
            '{"name": "a1", "zip": "b2", "city": "b2"}': 0.67,
            '{"name": "a1", "zip": "b2", "city": "c3", "street": "d4"}': 0.86,
            '{"a1": "name", "b2": "zip", "c3": "city"}': 0,
            "{}": 0,
            "name: a1, zip: b2, city: c3": 0,
            r"{'name': '\e'}": 0,
            "": 0,
        },
    ),
    *rated(
        live_question("consecutive_events", EVENTS),
        {
            f"<solution>{EVENTS}</solution>": 1,
            f"<Solution>{EVENTS}</Solution>": 1,
            f'<solution>[{{"user_id": "u1", "{KEY}": 3}}]</solution>': 0.5,
            "<solution>" + EVENTS.replace("5", "4") + "</solution>": 0.3333,
            "<solution>" + EVENTS.replace("}", ', "more": 1}') + "</solution>": 1,
            f"<solution>{EVENTS[:-1]}, {{}}, 7]</solution>": 1,
            f'<solution>[{{"user_id": "u9", "{KEY}": 3}}]</solution>': 0,
            "<solution>none</solution>": 0,
            "<solution>[3, 5]</solution>": 0,
            EVENTS: 0,
            "": 0,
        },
    ),
    *rated(
        live_question("tablereformat", TABLE, prompt="Target Format: CSV"),
        {
            "name,id\nAnn,1\nBob,2": 1,
            "id,name\n1.0000001, Ann \n2,Bob": 1,
            "id,name\n2,Bob\n1,Ann": 0,
            "id,name\n1,Ann\n2,Bob\n3,Cem": 0,
            "id,name,age\n1,Ann,\n2,Bob,": 0,
            "id,name\n1,\n2,Bob": 0,
        },
    ),
    *rated(live_question("zebra_puzzle", "fantasy movies"), {"***fantasy movies***": 0, "***Fantasy***": 1}),
    *rated(live_question("zebra_puzzle", "d&b"), {"They like ***d&b***.": 0}),
    *rated(live_question("zebra_puzzle", "security-guard"), {"***teacher*** no, ***security-guard***": 0}),
    *rated(
        live_question("zebra_puzzle", "3"),
        {
            "***three***": 0,  # a digit stands for its word, not the word for its digit
            "The position is 3.": 1,
            "The position is **three**": 0,
            "***2***": 0,
            "***3*** or rather ***4***": 0,
            "3 is the position": 0,
            "": 0,
        },
    ),
    *rated(live_question("zebra_puzzle", "movies"), {"***fantasy movies***": 1, r"\boxed{movies}": 1, "‘movies’": 1}),
    *rated(
        live_question("spatial", "4"),
        {
            "**4**": 1,
            "**Four**": 1,
            "**4** pieces, by **two** cuts and **one** turn": 1,
            "**4**, **a**, **b**, **c**": 0,
            "**14**": 0,
            r"hence \boxed{4}": 1,
            r"hence $\boxed 4$": 1,
            "4": 1,
            "4.": 0,
            "": 0,
        },
    ),
    *rated(
        live_question("spatial", "square pyramid"), {"**Square pyramid**": 1, "**Square pyramid.**": 0, "**square**": 0}
    ),
    *rated(live_question("spatial", "tetrahedra"), {"**two tetrahedra**": 1}),
    *rated(live_question("spatial", "tetrahedron"), {"**a regular tetrahedron**": 1}),
    *rated(live_question("spatial", "triangle"), {"**it is certainly not any kind of triangle**": 0}),
    *rated(
        live_question("AMPS_Hard", r"\frac{529}{2}", subtask="amps_hard_any"),
        {
            r"\boxed{\frac{529}{2}}": 1,
            r"\boxed{1} \boxed{\dfrac{529}2}": 1,
            r"\boxed{264.5}": 1,
            r"$\sigma^2 = 264.5$": 1,
        },
    ),
    *rated(
        live_question("AMPS_Hard", r"\sqrt{\frac{1877}{10}}", subtask="amps_hard_any"),
        {r"\boxed{\sqrt{187.7} \approx 13.70}": 1, r"\boxed{13.7004}": 1, r"\boxed{13.6}": 0},
    ),
    *rated(
        live_question("AMPS_Hard", r"-5 (-x-26) (x-8)", subtask="amps_hard_any"),
        {r"\boxed{5(x+26)(x-8)}": 1, r"\boxed{-5(x+26)(x-8)}": 0},
    ),
    *rated(
        live_question("AMPS_Hard", r"-\sin (7) \sin (8 x)-\cos (7) \cos (8 x)", subtask="amps_hard_any"),
        {r"\boxed{-\cos(7-8x) + C}": 1, r"\boxed{-\cos(7-8x) + 1}": 0},
    ),
    *rated(
        live_question("AMPS_Hard", r"\frac{2}{2 x+1}", subtask="amps_hard_any"),
        {r"$f'(x) = \frac{1}{x + \frac12}$": 1, r"\[f'(x) = \frac{1}{x + \frac12}\]": 0},
    ),
    *rated(
        live_question("AMPS_Hard", "247", subtask="amps_hard_any"),
        {"The answer is 247": 1, "247 is the answer": 0, r"\boxed{}": 0, r"\boxed{\pm 247}": 0, "": 0},
    ),
    *rated(
        live_question("AMPS_Hard", r"\text{$\$$Aborted}", subtask="amps_hard_any"), {r"\boxed{\text{$\$$Aborted}}": 1}
    ),
    *rated(live_question("cta", "Country.of.Origin"), {"Country.of.Origin": 1, " `country of origin` ": 1}),
    *rated(live_question("cta", "mass (g)"), {r"\boxed{\text{mass (g)}}": 1}),
    *rated(
        live_question("cta", "id"),
        {"The class is: id": 1, "id, since these are numbers": 0, r"\boxed{year} id": 0, "": 0},
    ),
    # A characteristic polynomial has either sign.
    *rated(POLYNOMIAL, {r"\boxed{\lambda^3 - 8\lambda^2 - 7}": 1, r"\boxed{\lambda^3 - 8\lambda^2 + 7}": 0}),
]


@pytest.mark.parametrize(("question", "answer", "worth"), CASES)
def test_worth(question: LiveQuestion, answer: str, worth: float) -> None:
    assert score(question, answer) == pytest.approx(worth)


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        (live_question("cta", "id"), r"\boxed{id"),
        (live_question("math_comp", "C", prompt=OPTIONS), r"\boxed3{C} (C)"),
        (live_question("connections", WORDS, released="2024-11-25"), rf"\boxed{{{WORDS}"),
        (live_question("olympiad", "3,1"), r"\boxed3{3,1}"),
    ],
)
def test_what_livebenchs_graders_fail_on_is_worth_nothing_with_a_reason(question: LiveQuestion, answer: str) -> None:
    graded = grade_answer(question, answer)
    assert graded.value == 0
    assert "box" in graded.why


def test_an_option_is_read_off_the_prompt() -> None:
    """Up to the next wide space or dollar sign: D swallows E, which then has none."""
    assert [option_text(OPTIONS, letter) for letter in "ABC"] == ["20", r"\frac{9}{25}", "1,250"]
    assert option_text(OPTIONS, "D").startswith("26")
    assert option_text(OPTIONS, "E") == option_text("no options", "A") == "FAILURE"


def test_a_truth_may_be_a_list_or_an_object() -> None:
    walk = live_question("logic_with_navigation", [3, -2])
    assert [score(walk, f"<Solution>{one}</Solution>") for one in ("(3, -2)", "3,-2", "(-2, 3)", "[3, -2, 1]")] == [
        1,
        1,
        0,
        1,
    ]
    assert score(live_question("consecutive_events", json.loads(EVENTS)), f"<solution>{EVENTS}</solution>") == 1
    assert score(live_question("tablejoin", json.loads(JOIN)), JOIN) == 1
    assert score(live_question("AMPS_Hard", ["1", r"\frac12"], subtask="amps_hard_any"), r"\boxed{0.5}") == 1
