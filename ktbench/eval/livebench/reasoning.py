"""Graders of LiveBench's reasoning tasks: generated text → its score, 0 to 1."""

from __future__ import annotations

import re

from ktbench.eval.livebench.extraction import (
    bold,
    items,
    last_boxed,
    last_line,
    last_solution,
    partial_score,
    plain,
    solutions,
)
from ktbench.eval.livebench.question import LiveQuestion

_ONES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
_TEENS = ("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty")
NUMBERS = _ONES + _TEENS
SHAPES = ("tetrahedra", "tetrahedron", "triangle", "square")  # may stand within a short phrase
_TRUTHS = re.compile(r"\b(?:yes|no|unknown)\b")


def web_of_lies(question: LiveQuestion, answer: str) -> float:
    """web_of_lies_v2, 0 or 1: three words, equal to the truth, or among them if there are exactly three."""
    extracted, truth = _truths(answer.lower(), 3), question.truth.lower()
    return float(extracted == truth or (len(_TRUTHS.findall(extracted)) == 3 and truth in extracted))


def web_of_lies_in_parts(question: LiveQuestion, answer: str) -> float:
    """web_of_lies_v3, partial: words compared place by place."""
    truth = items(question.truth)
    extracted = items(_truths(answer.lower(), len(truth)))
    return partial_score([a == b for a, b in zip(extracted, truth, strict=False)], len(truth))


def _truths(answer: str, count: int) -> str:
    """The list in the last solution, else of the last words in bold, else in the last box, else the text's last."""
    if (extracted := last_solution(answer)) is not None:
        return plain(extracted)
    words = [word for span in bold(answer) for word in _TRUTHS.findall(span)]
    if len(words) >= count:
        return ", ".join(words[-count:])
    if (extracted := last_boxed(answer)) is not None:
        return plain(extracted)
    listed = re.findall(rf"{_TRUTHS.pattern}(?:, {_TRUTHS.pattern}){{{count - 1}}}", answer)
    return str(listed[-1]) if listed else ""


def zebra_puzzle(question: LiveQuestion, answer: str) -> float:
    """zebra_puzzle: one word until 2024-11-25, a list of answers from then on."""
    return _zebra_list(question, answer) if question.released >= "2024-11-25" else _zebra_word(question, answer)


def _zebra_word(question: LiveQuestion, answer: str) -> float:
    """0 or 1: the last `***word***`, else the last word; `X` stands for `X movies`, and numbers may be words."""
    marked = re.findall(r"\*\*\*([^*]+)\*\*\*", answer)
    extracted = _as_digit(_bare(marked[-1] if marked else next(reversed(answer.split()), "")))
    truth = _as_digit(_bare(question.truth))
    return float(extracted in (truth, truth.removesuffix(" movies")))


def _zebra_list(question: LiveQuestion, answer: str) -> float:
    """Partial: each item is right where it is the truth or holds it; a hyphen is a blank."""
    truth = items(question.truth.replace("-", " "))
    extracted = items(_zebra_items(answer, len(truth)).replace("-", " "))
    return partial_score([wanted in given for given, wanted in zip(extracted, truth, strict=False)], len(truth))


def _zebra_items(answer: str, count: int) -> str:
    if (extracted := last_solution(answer) or last_boxed(answer)) is not None:
        return plain(extracted)
    lines = [line for line in answer.splitlines() if line.count(",") == count - 1]
    return lines[-1] if lines else ""


def spatial(question: LiveQuestion, answer: str) -> float:
    """0 or 1: one of the last three bold spans, else the last box."""
    truth = question.truth.lower()
    if any(_is_shape_or_number(_bare(span), truth) for span in bold(answer)[-3:]):
        return 1.0
    return float(_as_digit(_bare(plain(last_boxed(answer) or ""))) == truth)


def _is_shape_or_number(extracted: str, truth: str) -> bool:
    if _as_digit(extracted) == truth:
        return True
    return truth in SHAPES and truth in extracted and len(extracted) < 2 * len(truth) + 5


def theory_of_mind(question: LiveQuestion, answer: str) -> float:
    """0 or 1: the last solution, else the last line, is the truth or holds it."""
    extracted = last_solution(answer)
    return float(_bare(question.truth) in _bare(last_line(answer) if extracted is None else extracted))


def sudoku(question: LiveQuestion, answer: str) -> float:
    """0 or 1: the first solution is the truth but for blanks."""
    extracted = next(iter(solutions(answer)), "")
    return float("".join(extracted.split()) == "".join(question.truth.split()))


def logic_with_navigation(question: LiveQuestion, answer: str) -> float:
    """0 or 1: the last solution is the right pair of whole numbers."""
    extracted = _pair(last_solution(answer) or "")
    return float(extracted is not None and extracted == _pair(question.truth))


def _pair(text: str) -> tuple[int, int] | None:
    found = re.fullmatch(r"\(?\s*([+-]?\d{1,18})\s*,\s*([+-]?\d{1,18})\s*\)?", plain(text))
    return (int(found[1]), int(found[2])) if found else None


def _bare(text: str) -> str:
    """The text in lower case, without blanks and punctuation around it."""
    return text.lower().strip(" \t\r\n.,;:!?*_'\"`()[]{}")


def _as_digit(word: str) -> str:
    return str(NUMBERS.index(word)) if word in NUMBERS else word
