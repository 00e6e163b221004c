"""Questions of the tasks whose answers are letters, numbers and formulae: the true content, and what resembles it.

Of each question the contents end with a wrong one.
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.eval.livebench.crafted.words import FIRST, Question, listed

OPTIONS = (
    r"How far? $\textbf{(A) }20\qquad\textbf{(B)}~\frac{9}{25}\qquad\textbf{(C) }1,250 \qquad"
    r"\textbf{(D) }26\\ \textbf{(E) }\sqrt3$ Answer with a letter, five times, as EEEEE."
)


def _choice(letter: str) -> Question:
    contents = (
        letter * 5,
        letter * 4,
        letter * 3,
        letter,
        letter.lower() * 5,
        letter.lower(),
        f"({letter})",
        f"{letter})",
        f"**{letter}**",
        f"({letter.lower()})",
        f"{letter} ",
        "BBBBB" if letter != "B" else "CCCCC",
    )
    special = [
        f"So the answer is ({letter}).",
        f"it is\n({letter})",
        f"it is ({letter})\nbye",
        f"(see above) ({letter})",
        f"\\boxed{{\\textbf{{({letter})}}}}",
        "the distance is 1,250 miles",
        "20 miles",
        r"it is \frac{9}{25}",
        "FAILURE",
        r"it is \sqrt3",
        "26",
        "1,250" + " and so on" * 5,
        f"<solution>{letter.lower() * 5}</solution>",
        f"<solution>{letter}{letter.lower()}</solution>",
        f"<solution>{letter}.</solution>",
        f"){letter}(",
        f"**({letter})**",
        f"\\boxed{{{letter.lower()}}}",
        f"\\boxed{{\\mathrm{{{letter}}}}}",
        f"\\boxed{{({letter})}}",
    ]
    return {"truth": letter, "released": FIRST, "prompt": OPTIONS, "subtask": "amc_12a_2023"}, contents, special


def _integer(truth: str) -> Question:
    contents = (
        truth,
        truth.lstrip("0"),
        f"{truth}.",
        f"1{truth}",
        f"{truth}1",
        " ".join(truth),
        truth + " and so on" * 5,
        "444",
    )
    special = [
        f"<solution>{truth}</solution>" + " and so on" * 6,
        f"<solution>{truth[0]}</solution>" + " and so on" * 6,
    ]
    return {"truth": truth, "released": FIRST, "prompt": "n = ?", "subtask": "aime_i_2024"}, contents, special


def _proof(truth: str) -> Question:
    contents = listed(truth, "99", ",") + tuple(
        ", ".join(f"{left}{n}{right}" for n in truth.split(","))
        for left, right in (("<expression ", ">"), ("$", "$"), ("**", "**"), ("", "."), ("no. ", ""), ("", " each"))
    )
    contents = (*contents, "none", "1_0, 2", "2², 3", "₂, 3", "+1, -2", "NO ANSWER")
    special = [
        f"Answer: 1\nAnswer: {truth}\nDone: 7",
        f"ANSWER: {truth}",
        f"answer:\n\n{truth}",
        "Answer: none\n" + truth,
        f"answer: {truth}\nanswer: none",
        f"Answer: none \\boxed{{{truth}}}",
        f"answer: x, y\n\\boxed{{x}}\nfirst {truth}",
        f"by 7, 8\n{truth}.",
        f"{truth}\nas shown",
        "answer: " + truth + " answer: 5",
        "answer: " + "8" * 5000 + ", 1",
        f"answer: {truth} \\boxed{{1}}",
        "\\boxed{x} no digits",
        "the answer: a, b3, c4x, d5",
        "²",
        "answer: ²",
    ]
    return {"truth": truth, "released": FIRST, "subtask": "imo"}, contents, special


def _game(truth: str, *contents: str) -> Question:
    special = [
        f"you win {truth} in the end",
        f"{truth}" + " and so on" * 25,
        f"<solution>1{truth}</solution>",
        "<solution>x</solution>",
        f"<solution>\\boxed{{{truth}}}</solution>",
        f"it is {truth} <solution>0</solution>",
        "<solution>1/0</solution>",
        "<solution>nan</solution>",
        "<solution>oo</solution>",
        f"<solution>{truth}</solution>" + " x" * 200,
    ]
    latex = {
        "15^3": "3375",
        r"\frac34": "3/4",
        r"-\frac{3}{4}": "-3/4",
        r"(\frac{3}{4})": "3/4",
        r"{\frac{6}{8}}": "3/4",
    }  # as SymPy reads these
    return {"truth": truth, "released": "2026-01-08", "latex": latex}, (truth, *contents, "x"), special


def _formula(
    truth: str, same: Sequence[str], negative: Sequence[str], other: Sequence[str], subtask: str = "any"
) -> Question:
    """`same` and `negative` have the truth's value, and its negative: a model that judges would say so."""
    row = {
        "truth": truth,
        "released": FIRST,
        "subtask": f"amps_hard_{subtask}",
        "same": [truth, *same],
        "negative": list(negative),
    }
    special = [f"so $x = {one}$" for one in (truth, *same, *negative)] + [f"$${one}$$" for one in (truth, *same)]
    special += [f"$f(x) = {one} + C$" for one in (truth, *same[:2])] + [
        f"\\[{truth}\\]",
        f"\\({truth}\\)",
        f"\\boxed{{y = {truth}}}",
    ]
    special += [
        f"$1 \\quad \\text{{or}} \\quad {truth}$",
        f"It is ${truth}$ or ${other[0]}$",
        f"The answer is {truth}.",
    ]
    return row, (truth, *same, *negative, *other), special


QUESTIONS: dict[str, list[Question]] = {
    "math_comp": [*map(_choice, "ABCDE"), *map(_integer, ("025", "7", "113"))],
    "olympiad": [_proof("3,1,2,4"), _proof("10,2,7,1,5,6,3"), _proof("1,2")],
    "integrals_with_game": [
        _game(
            "3375",
            "3375.0",
            "3,375",
            r"3375\,",
            "3375/1",
            "6750/2",
            "3374",
            "3.375e3",
            r"15^3",
            r"\frac{6750}{2}",
            "+3375",
            "-3375",
        ),
        _game(
            "3/4",
            r"\frac{3}{4}",
            r"\dfrac{3}{4}",
            "0.75",
            "6/8",
            r"\frac34",
            r"-\frac{3}{4}",
            "0.750004",
            "0.7501",
            "3 / 4",
            r"\left(\frac{3}{4}\right)",
            r"\frac{3}{4} + 1",
            r"\\frac{3}{4}",
            "13/4",
            "x = 3/4",
            r"\tfrac{6}{8}",
            "75%",
        ),
        _game(
            "11326/3",
            r"\frac{22652}{6}",
            "3775.3333333",
            "3775.333",
            r"3775 \frac{1}{3}",
            r"\frac{11326}{3}",
            "11326 /3",
            "11326/-3",
        ),
    ],
    "AMPS_Hard": [
        _formula(
            r"\frac{529}{2}",
            ["264.5", r"\dfrac{529}{2}", r"\frac{1058}{4}", "264.5001", r"264 + \frac{1}{2}"],
            [r"-\frac{529}{2}", "-264.5"],
            ["264", "265.5", "264.6", r"\frac{529}{3}", "five"],
        ),
        _formula(
            r"36 \sqrt[5]{2} 5^{4/5} 11^{3/5}",
            [r"36 \cdot 2^{1/5} \cdot 5^{4/5} \cdot 11^{3/5}", r"36 \sqrt[5]{2 * 5^4 * 11^3}"],
            [],
            [r"36 \sqrt[5]{2}", "630", "a root"],
        ),
        _formula(
            r"-\lambda ^3+8 \lambda ^2+7",
            [r"7 + 8\lambda^2 - \lambda^3", r"-(\lambda^3 - 8\lambda^2 - 7)"],
            [],
            [r"\lambda^3 - 8\lambda^2 + 7", r"-\lambda^3 + 8\lambda^2", "zero"],
            "characteristic_polynomial",
        ),
        _formula(
            r"\lambda ^2-5 \lambda +6",
            [r"(\lambda - 2)(\lambda - 3)"],
            [],
            [r"\lambda^2 + 5\lambda + 6", "six"],
            "characteristic_polynomial",
        ),
        _formula(
            r"-5 (-x-26) (x-8)",
            [r"5(x+26)(x-8)", r"5x^2 + 90x - 1040"],
            [r"-5(x+26)(x-8)", r"-5x^2 - 90x + 1040"],
            [r"5(x-26)(x-8)", "x", "a product"],
        ),
        _formula(
            r"-\sin (7) \sin (8 x)-\cos (7) \cos (8 x)",
            [r"-\cos(8x - 7)", r"-\cos(7 - 8x)"],
            [r"\cos(8x - 7)"],
            [r"-\cos(8x + 7)", r"\sin(8x - 7)", "a wave"],
        ),
        _formula("247", ["247.0", "247.0002", r"\frac{494}{2}"], ["-247"], ["248", "247.1", "2470", "two"]),
        _formula("499122178", ["499122178.0"], ["-499122178"], ["499122179", "499122178.5", "4.99e8", "big"]),
        _formula(
            r"\sqrt{\frac{1877}{10}}",
            [r"\sqrt{187.7}", "13.7004", "13.7", r"\frac{\sqrt{18770}}{10}"],
            [r"-\sqrt{187.7}"],
            ["13.69", "13.6", "root"],
        ),
        _formula(
            r"\frac{1}{x^2+1}",
            [r"(x^2+1)^{-1}", r"\frac{1}{1+x^2}"],
            [r"-\frac{1}{x^2+1}"],
            [r"\frac{1}{x^2-1}", r"\frac{2}{x^2+1}", "f"],
        ),
    ],
}
