"""Mathematics tasks: right, wrong and tricky answers."""

from __future__ import annotations

import pytest

from ktbench.eval.livebench.mathematics import option_text
from tests.eval.livebench.asked import asked, score

OPTIONS = (
    r"How far? $\textbf{(A) }20\qquad\textbf{(B)}~\frac{9}{25}\qquad\textbf{(C)}\ 1,250 \quad"
    r"\textbf{(D) }26\\ \textbf{(E) }\sqrt3$ If you"
)


def test_an_option_is_read_off_the_prompt() -> None:
    assert [option_text(OPTIONS, letter) for letter in "ABCDE"] == ["20", r"\frac{9}{25}", "1,250", "26", r"\sqrt3"]
    assert option_text("no options", "A") == ""


@pytest.mark.parametrize(
    ("answer", "worth"),
    [
        ("CCCCC", 1),
        ("Hence CCCC", 1),
        ("<solution>CCCCC</solution>", 1),
        (r"\boxed{C}", 1),
        (r"\boxed{\textbf{(C)}}", 1),
        ("it is\n(C)", 1),
        ("it is\n**C**\n", 1),
        ("the distance is 1,250 miles", 1),
        ("it would be 1,250 if that were all, but there is a long way to go from here", 0),
        ("CCC", 0),
        ("BBBBB", 0),
        ("<solution>B</solution>", 0),
        (r"\boxed{B}", 0),
        ("", 0),
    ],
)
def test_math_comp_of_five_choices(answer: str, worth: float) -> None:
    assert score(asked("math_comp", "C", prompt=OPTIONS), answer) == worth


@pytest.mark.parametrize(
    ("answer", "worth"),
    [
        ("so the answer is 025", 1),
        (r"\boxed{025}.", 1),
        ("so the answer is 25", 0),
        ("025 " + "and so on " * 6, 0),
        ("", 0),
    ],
)
def test_math_comp_of_three_digits(answer: str, worth: float) -> None:
    assert score(asked("math_comp", "025"), answer) == worth


@pytest.mark.parametrize(
    ("answer", "worth"),
    [
        ("Since …\n\nAnswer: 3, 1, 2, 4", 1),
        ("**Answer:** 3,1,2,4", 1),
        ("Answer:\n3, 1, 2, 4\nThank you", 1),
        ("Answer: 1\nNo, answer: <expression 3>, <expression 1>, <expression 2>, <expression 4>", 1),
        (r"\boxed{3, 1, 2, 4}", 1),
        ("by lemma 7\n3, 1, 2, 4", 1),
        ("Answer: 3, 2, 1, 4", 0.5),
        ("Answer: 3, 1, 2", 0.75),
        ("Answer: 3, 1, 2, 4, 5", 0.8),
        ("Answer: 5, 6, 7, 8", 0),
        ("Answer: none", 0),
        ("", 0),
    ],
)
def test_olympiad_counts_edits(answer: str, worth: float) -> None:
    assert score(asked("olympiad", "3,1,2,4"), answer) == pytest.approx(worth)


@pytest.mark.parametrize(
    ("truth", "answer", "worth"),
    [
        (r"\frac{529}{2}", r"\boxed{\frac{529}{2}}", 1),
        (r"\frac{529}{2}", r"\boxed{1} \boxed{\dfrac{529}2}", 1),
        (r"\frac{529}{2}", r"\boxed{264.5}", 1),
        (r"\frac{529}{2}", r"$\sigma^2 = 264.5$", 1),
        (r"\sqrt{\frac{1877}{10}}", r"\boxed{\sqrt{187.7} \approx 13.70}", 1),
        (r"\sqrt{\frac{1877}{10}}", r"\boxed{13.7004}", 1),
        (r"\sqrt{\frac{1877}{10}}", r"\boxed{13.6}", 0),
        (r"-5 (-x-26) (x-8)", r"\boxed{5(x+26)(x-8)}", 1),
        (r"-5 (-x-26) (x-8)", r"\boxed{-5(x+26)(x-8)}", 0),
        (r"-\sin (7) \sin (8 x)-\cos (7) \cos (8 x)", r"\boxed{-\cos(7-8x) + C}", 1),
        (r"-\sin (7) \sin (8 x)-\cos (7) \cos (8 x)", r"\boxed{-\cos(7-8x) + 1}", 0),
        (r"\frac{2}{2 x+1}", r"\[f'(x) = \frac{1}{x + \frac12}\]", 1),
        ("247", "The answer is 247", 1),
        ("247", "247 is the answer", 0),
        ("247", r"\boxed{}", 0),
        ("247", r"\boxed{\pm 247}", 0),
        (r"\text{$\$$Aborted}", r"\boxed{\text{$\$$Aborted}}", 1),
        ("247", "", 0),
    ],
)
def test_amps_hard_compares_formulae(truth: str, answer: str, worth: float) -> None:
    assert score(asked("AMPS_Hard", truth, subtask="amps_hard_any"), answer) == worth


def test_a_characteristic_polynomial_has_either_sign() -> None:
    question = asked("AMPS_Hard", r"-\lambda ^3+8 \lambda ^2+7", subtask="amps_hard_characteristic_polynomial")
    assert score(question, r"\boxed{\lambda^3 - 8\lambda^2 - 7}") == 1
    assert score(question, r"\boxed{\lambda^3 - 8\lambda^2 + 7}") == 0


@pytest.mark.parametrize(
    ("answer", "worth"),
    [
        ("<solution>3/4</solution>", 1),
        (r"<solution>\boxed{\frac{3}{4}}</solution>", 1),
        (r"\boxed{0.75}", 1),
        ("you win 3/4", 1),
        (r"\boxed{-\frac34}", 0),
        ("<solution>13/4</solution>", 0),
        ("<solution>many</solution>", 0),
        ("", 0),
    ],
)
def test_integrals_with_game(answer: str, worth: float) -> None:
    assert score(asked("integrals_with_game", "3/4"), answer) == worth
