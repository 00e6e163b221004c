"""Graders of LiveBench's mathematics tasks: generated text → its score, 0 to 1."""

from __future__ import annotations

import re

from ktbench.eval.livebench.extraction import edit_distance, last_boxed, last_line, last_solution, plain
from ktbench.eval.livebench.latex import same_value
from ktbench.eval.livebench.question import LiveQuestion

NEAR = 0.001  # a number this near is right in AMPS_Hard
BOTH_SIGNS = "characteristic_polynomial"  # of A - λ or of λ - A, by convention: the ground truth has either


def math_comp(question: LiveQuestion, answer: str) -> float:
    """0 or 1: a letter of five choices, or an integer among the last 50 characters (AIME)."""
    if not re.fullmatch("[A-E]", question.truth):
        return float(question.truth in answer[-50:])
    return float(any(_choices(question, answer)))


def _choices(question: LiveQuestion, answer: str) -> list[bool]:
    """The ways to name the right letter, each: in the solution, repeated, boxed, by the option's text, as last line."""
    letter, option = question.truth, option_text(question.prompt, question.truth)
    return [
        bool(re.fullmatch(f"{letter}+", last_solution(answer) or "")),
        letter * 4 in answer,
        plain(last_boxed(answer) or "").strip("()") == letter,
        bool(option) and option in answer[-20 - len(option) :],
        plain(last_line(answer)).strip("*. ").removeprefix("(").removesuffix(")") == letter,
    ]


def option_text(prompt: str, letter: str) -> str:
    r"""The text of an option in a prompt that has `\textbf{(A) }20\qquad\textbf{(B) }24…`; '' where it has none."""
    start = re.search(rf"\\textbf\{{\({letter}\)\s*\}}(?:~|\\ |\s)*", prompt)
    if not start:
        return ""
    return re.split(r"\\q+uad|\\textbf\{\([A-E]\)|\$|\\\\", prompt[start.end() :])[0].strip()


def olympiad(question: LiveQuestion, answer: str) -> float:
    """Partial: one less the edit distance of the lists over the longer one's length."""
    extracted, truth = _answer_numbers(answer), _numbers(question.truth)
    return 1 - edit_distance(extracted, truth) / max(len(extracted), len(truth))


def _answer_numbers(answer: str) -> list[str]:
    """The numbers of the line after the last `answer:`, else in the last box, else in the last line."""
    _, marked, after = answer.lower().rpartition("answer:")
    line = next((line for line in after.splitlines() if re.search(r"\d", line)), "") if marked else ""
    return _numbers(line) or _numbers(last_boxed(answer) or "") or _numbers(last_line(answer))


def _numbers(text: str) -> list[str]:
    return [number.lstrip("0") or "0" for number in re.findall(r"\d+", text)]


def amps_hard(question: LiveQuestion, answer: str) -> float:
    """0 or 1: the last box, else the last `$…$`, is the same formula; with neither, the text ends with the truth."""
    extracted = _formula(answer)
    if extracted is None:
        return float(answer.rstrip().endswith(question.truth))
    if _squeezed(extracted) == _squeezed(question.truth):
        return 1.0
    signs = (1, -1) if question.subtask.endswith(BOTH_SIGNS) else (1,)
    return float(any(same_value(extracted, question.truth, within=NEAR, sign=sign) for sign in signs))


def _formula(answer: str) -> str | None:
    if (boxed := last_boxed(answer)) is not None:
        return boxed
    dollars = re.sub(r"\$\$|\\[][()]", "$", answer)
    found = re.findall(r"\$([^$]+)\$", dollars)
    return found[-1] if found else None


def _squeezed(formula: str) -> str:
    return re.sub(r"\s|\\left(?![a-z])|\\right(?![a-z])", "", formula)


def integrals_with_game(question: LiveQuestion, answer: str) -> float:
    """0 or 1: the number in the solution or the box; with neither, the truth among the last 200 characters."""
    extracted = last_solution(answer) or last_boxed(answer)
    if extracted is None:
        return float(question.truth in answer[-200:])
    return float(same_value(last_boxed(extracted) or extracted, question.truth))
