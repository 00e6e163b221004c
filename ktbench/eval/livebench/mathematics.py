"""Graders for LiveBench's mathematics tasks by its own rules: generated text → score, 0 to 1."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from fractions import Fraction

from ktbench.eval.livebench.extraction import (
    ANYWHERE,
    edit_distance,
    last_box,
    last_line,
    last_solution,
    with_boxes,
    without,
)
from ktbench.eval.livebench.latex import same_value
from ktbench.eval.livebench.question import LiveQuestion

NEAR = 1e-3  # numbers nearer than this are the same in AMPS_Hard
NEAR_IN_GAME = 1e-5  # and in integrals_with_game
BOTH_SIGNS = "characteristic_polynomial"  # of A - λ or of λ - A, by convention: the ground truth may use either


def math_comp(question: LiveQuestion, answer: str) -> float:
    """0 or 1: a letter of five choices, or an integer among the last 50 characters (AIME)."""
    if not re.fullmatch("[A-E]", question.truth):
        return float(_is_repeated(answer, question.truth) or question.truth in answer[-50:])
    return float(_is_chosen(question, question.truth, with_boxes(answer)))


def _is_chosen(question: LiveQuestion, letter: str, answer: str) -> bool:
    """In the solution, four times in a row, in the last box, by the option's text at the end, or in the last line."""
    if _is_repeated(answer, letter) or letter * 4 in answer:
        return True
    if without(last_box(answer) or "", r"\text{", "}", "\\").lower() == letter.lower():
        return True
    option = option_text(question.prompt, letter)
    return option in answer[-20 - len(option) :] or _is_in_line(last_line(answer), letter)


def _is_repeated(answer: str, wanted: str) -> bool:
    """Whether the last solution is a single repeated character, the correct one in either case."""
    signs = set(last_solution(answer) or "")
    return len(signs) == 1 and signs.pop().lower() == wanted.lower()


def _is_in_line(line: str, letter: str) -> bool:
    """Whether a line is the letter, or its first parentheses contain the letter."""
    if without(line.strip(), "*").lower() == letter.lower():
        return True
    return "(" in line and ")" in line and line.split("(")[1].split(")", maxsplit=1)[0].lower() == letter.lower()


def option_text(prompt: str, letter: str) -> str:
    r"""The text of an option in a prompt that has `\textbf{(A) }20\qquad\textbf{(B) }24…$`; FAILURE without one.

    LiveBench compares with that word too.
    """
    options = re.findall(r"\\textbf{\(([A-E])\)\s?}(.*?)(?:\\qquad|\$)", prompt)
    text = dict(options).get(letter, "").strip() or "FAILURE"
    return text.strip("$").strip("~")


def olympiad(question: LiveQuestion, answer: str) -> float:
    """Partial: 1 minus the edit distance of the lists over the longer one's length."""
    truth = [int(number) for number in question.truth.split(",")]
    extracted = next(filter(None, _lists(answer)), None)
    extracted = _numbers_up_to_words(answer) if extracted is None else extracted
    return 1 - edit_distance(extracted, truth) / max(len(extracted), len(truth))


Numbers = list[int | None]  # None is an item that is not a number


def _lists(answer: str) -> Iterator[Numbers]:
    """Candidate lists; the first non-empty one is the answer: `answer:`, the last box, the last line."""
    if "answer:" in answer.lower():
        yield _whole_numbers(map(_last_word, _answer_line(answer.lower().strip().split("\n")).split(",")))
    if r"\boxed" in answer:
        boxed = last_box(answer)
        yield _whole_numbers(without(answer if boxed is None else boxed, r"\text{", "}", "\\").strip().split(","))
    runs = [_digits(item)[0] for item in last_line(answer).lower().split(",")]
    yield _whole_numbers(filter(None, runs))


def _whole_numbers(items: Iterable[str]) -> Numbers:
    """The items as numbers; empty if none is a number."""
    numbers: Numbers = []
    for item in items:
        try:
            numbers.append(int(item.strip()))
        except ValueError:
            numbers.append(None)
    return numbers if any(number is not None for number in numbers) else []


def _answer_line(lines: list[str]) -> str:
    """The text after `answer:` in the last line that has it, or the next line if that is empty."""
    at = max(number for number, line in enumerate(lines) if "answer:" in line)
    text = without(lines[at].split("answer:")[1], "**", ".").strip()
    return text or without("".join(lines[at + 1 : at + 2]), "answer:", "**", ".").strip()


def _last_word(item: str) -> str:
    return without(item.strip().split(" ")[-1], "$", "{", "}", "\\", "boxed", "<", ">")


def _digits(text: str) -> tuple[str, bool]:
    """The first run of digits, and whether there is anything around it."""
    start = next((at for at, sign in enumerate(text) if sign.isdigit()), len(text))
    end = next((at for at in range(start, len(text)) if not text[at].isdigit()), len(text))
    return text[start:end], end - start < len(text)


def _numbers_up_to_words(answer: str) -> Numbers:
    """The numbers after the last `answer:`, up to the second or later item that contains anything else."""
    numbers: Numbers = []
    for at, item in enumerate(answer.lower().split("answer:")[-1].split(",")):
        digits, has_more = _digits(item.strip())
        if digits and digits != "₂":
            numbers.append(int(digits))
        if at > 0 and has_more:
            break
    return numbers


def amps_hard(question: LiveQuestion, answer: str) -> float:
    """0 or 1: the last box, else the last `$…$`, is the truth or has its value; with neither, the text ends with it."""
    held = question.ground_truth
    truth = str(held[-1]) if isinstance(held, list) else question.truth
    truth = without(truth, r"\left", r"\right").replace(" ^", "^").replace(r"\ ", "*")
    text = _without_decoration(answer)
    extracted = _formula(text)
    if extracted is None:
        return float(text.removesuffix(".").endswith(truth))
    signs = (1, -1) if question.subtask.endswith(BOTH_SIGNS) else (1,)
    is_same = _bare(extracted) == _bare(truth)
    return float(is_same or any(same_value(extracted, truth, within=NEAR, sign=sign) for sign in signs))


def _without_decoration(answer: str) -> str:
    """The answer on one line, without constants of integration, spacing, and the size of brackets."""
    text = with_boxes(without(answer, "+C", "+ C", "+ c", "+c"))
    text = text.replace(r"\dfrac", r"\frac").replace(r"\tfrac", r"\frac")
    text = without(text, r"\left", r"\right", r"\bigl", r"\bigr", r"\Bigl", r"\Bigr", r"\,", r"\;", "\n")
    return text.replace(r"\cdot", "*")


def _formula(text: str) -> str | None:
    """The content of the last box, else of the last `$…$`; None with neither."""
    if (boxed := last_box(text)) is not None:
        return boxed
    if text.count("$") < 2:
        return None
    end = text.rfind("$")
    end -= text[end - 1] == "$"
    formula = text[text.rfind("$", 0, end) + 1 : end]
    return formula if "=" in formula else formula.split(r"\quad \text{or} \quad")[-1]


def _bare(formula: str) -> str:
    """The right side of a formula, without text commands, dollar signs and blanks."""
    return re.sub(r"[\s$]", "", re.sub(r"\\text(?:bf)?\{(.*?)\}", r"\1", formula.rpartition("=")[2]))


def integrals_with_game(question: LiveQuestion, answer: str) -> float:
    """0 or 1: the solution or the box has the truth's value, or the truth is among the last 200 characters."""
    if _is_number(last_solution(answer, ANYWHERE) or "", question.truth):
        return 1.0
    if _is_number(last_box(with_boxes(answer)) or "", question.truth):
        return 1.0
    return float(_compact(question.truth) in _compact(answer[-200:]))


def _compact(text: str) -> str:
    """A normal form of LaTeX, without blanks."""
    text = text.strip().replace("\\\\", "\\").replace(r"\dfrac", r"\frac").replace(r"\tfrac", r"\frac")
    text = without(text, r"\left", r"\right", r"\bigl", r"\bigr", r"\Bigl", r"\Bigr").replace(r"\cdot", "*")
    return without(text, r"\,", r"\;", "\n", " ")


_UNREAD = re.compile(r"[=,]|\\(?:text|math|operator)")  # rejected by SymPy's LaTeX parser, but read by `latex`


def _is_number(answer: str, truth: str) -> bool:
    """Whether both have the same value: whole numbers, fractions and decimals exactly, else as formulae."""
    text = _compact(answer)
    ours, theirs = _rational(text), _rational(_compact(truth))
    if ours is None or theirs is None:
        return not _UNREAD.search(text) and same_value(text, _compact(truth), within=NEAR_IN_GAME)
    return abs(ours - theirs) < NEAR_IN_GAME


def _rational(text: str) -> Fraction | None:
    r"""The value of `3`, `3/4`, `0.75`, `1e3`, and of `\frac{3}{4}` with whatever follows; else None."""
    if re.search(r"e[+-]?\d{4}", text, flags=re.IGNORECASE):  # would be a number with this many digits
        return None
    with suppress(ValueError, ZeroDivisionError):
        return Fraction(text).limit_denominator(10**7) if "/" not in text else _quotient(text.split("/"))
    with suppress(ValueError, ZeroDivisionError):
        return _quotient(match.groups()) if (match := re.match(r"\\frac\{(\d+)\}\{(\d+)\}", text)) else None
    return None


def _quotient(parts: Iterable[str]) -> Fraction:
    above, below = parts
    return Fraction(int(above), int(below))
