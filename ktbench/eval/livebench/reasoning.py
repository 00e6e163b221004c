"""Graders for LiveBench's reasoning tasks by its own rules: generated text → score, 0 to 1."""

from __future__ import annotations

import re
from contextlib import suppress
from itertools import pairwise, product

from ktbench.eval.livebench.extraction import (
    ANYWHERE,
    last_box,
    last_line,
    last_solution,
    partial_score,
    solutions,
    solutions_or_between,
    with_boxes,
    without,
)
from ktbench.eval.livebench.question import LiveQuestion

_ONES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
_TEENS = ("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty")
NUMBERS = {word: str(number) for number, word in enumerate(_ONES + _TEENS)}
SHAPES = ("tetrahedra", "tetrahedron", "triangle", "square")  # may be within a short phrase
_TRUTHS = ("yes", "no", "unknown")
_TRIPLES = tuple(", ".join(words) for words in product(_TRUTHS, repeat=3))


def web_of_lies(question: LiveQuestion, answer: str) -> float:
    """web_of_lies_v2, 0 or 1: the last solution, else the last three words in bold, else a box, else a bare triple.

    It is right if it is the truth, or contains it and just three words in all; the `no` within `unknown` counts.
    """
    marked = solutions_or_between(answer)
    extracted = _boxed_or_bare(answer, marked[-1] if marked else _bold_truths(answer)) or ""
    truth = question.truth.lower()
    return float(extracted == truth or (sum(map(extracted.count, _TRUTHS)) == 3 and truth in extracted))


def web_of_lies_in_parts(question: LiveQuestion, answer: str) -> float:
    """web_of_lies_v3, partial: the last solution, else a box, else a bare triple; items compared sign by sign."""
    extracted = _boxed_or_bare(answer, last_solution(answer), r"\text{", "}")
    if extracted is None:
        return 0.0
    truth = question.truth.split(",")
    return partial_score([a == b for a, b in zip(extracted.split(","), truth, strict=False)], len(truth))


def _bold_truths(answer: str) -> str | None:
    """The last up to three words yes, no or unknown in bold; None without any."""
    spans = re.findall(r"\*\*(.*?)\*\*", answer)
    words = [without(word.lower(), ",", ".") for span in spans for word in span.split()]
    return ", ".join([word for word in words if word in _TRUTHS][-3:]) or None


def _boxed_or_bare(answer: str, extracted: str | None, *wrappers: str) -> str | None:
    """The extracted text; if it is blank the last box without its wrappers; if it is None a bare triple."""
    if not (extracted or "").strip():
        boxes = with_boxes(answer.replace(r"\\boxed{\\textbf{", r"\\boxed{")).replace(r"\textbf{", r"\boxed{")
        if (boxed := last_box(boxes)) is not None:
            extracted = without(boxed, *wrappers)
    return _bare_triple(answer) if extracted is None else extracted


def _bare_triple(answer: str) -> str | None:
    """Among the triples in a text, the one whose first occurrence is last; None without any."""
    text = answer.lower()
    first, triple = max((text.find(triple), triple) for triple in _TRIPLES)
    return triple if first >= 0 else None


def zebra_puzzle(question: LiveQuestion, answer: str) -> float:
    """zebra_puzzle: one word until 2024-11-25, a list of answers from then on."""
    return _zebra_list(question, answer) if question.released >= "2024-11-25" else _zebra_word(question, answer)


def _zebra_word(question: LiveQuestion, answer: str) -> float:
    """0 or 1: the last `***word***`, else the last word; a digit may stand for its word, and `X` for `X movies`."""
    words = re.findall(r"\*\*\*(\w+)\*\*\*", answer) or re.findall(r"\b\w+\b", answer) or [""]
    word, truth = words[-1], question.truth.lower()
    names = {digit: name for name, digit in NUMBERS.items() if digit in "123456789"}
    return float(truth in (word.lower(), f"{word.lower()} movies", names.get(word)))


def _zebra_list(question: LiveQuestion, answer: str) -> float:
    """Partial: each item is right if it is or contains the truth; a hyphen counts as a blank.

    With several solutions, the last items count, as many as the truth has.
    """
    truth = [_zebra_item(item) for item in question.truth.split(",")]
    given = [without(_zebra_item(item), "position") for item in _zebra_items(answer, len(truth))]
    return partial_score([wanted in item for item, wanted in zip(given, truth, strict=False)], len(truth))


def _zebra_item(text: str) -> str:
    return text.strip().lower().replace("-", " ")


def _zebra_items(answer: str, count: int) -> list[str]:
    """The items of the solutions, else of the last box, else of the last line if it has as many."""
    if len(marked := solutions_or_between(answer)) > 1:
        return [item for part in marked for item in part.split(",")][-count:]
    if marked:
        return marked[0].split(",")
    if (boxed := last_box(with_boxes(answer))) is not None:
        return without(boxed, r"\text{", "}", "\\").split(",")
    line = last_line(with_boxes(answer))
    return line.split(",") if line.count(",") == count - 1 else []


def spatial(question: LiveQuestion, answer: str) -> float:
    """0 or 1: the whole answer, one of its last three bold spans, else the last box."""
    truth = question.truth.strip().lower()
    bold = [span.strip().lower() for span in re.findall(r"\*\*([^*]+)\*\*", answer)[-3:]]
    if answer == question.truth or any(_is_shape_or_number(span, truth) for span in bold):
        return 1.0
    boxed = last_box(with_boxes(answer))
    return float(boxed is not None and without(boxed, r"\textbf{", r"\mathbf{", r"\text{", "}") == question.truth)


def _is_shape_or_number(extracted: str, truth: str) -> bool:
    if truth in (extracted, NUMBERS.get(extracted)):
        return True
    return truth in SHAPES and truth in extracted and len(extracted) < 2 * len(truth) + 5


def theory_of_mind(question: LiveQuestion, answer: str) -> float:
    """0 or 1: the last solution, else the last line, contains the truth after its punctuation is removed."""
    marked = solutions_or_between(answer, ANYWHERE) or [_without_introduction(last_line(answer).strip())]
    extracted = without(marked[-1].strip().lower(), *".,!?;:").strip()
    return float(question.truth.strip().lower() in extracted)


def _without_introduction(line: str) -> str:
    for words in ("Answer:", "answer:", "The answer is", "the answer is"):
        if line.startswith(words):
            line = line.removeprefix(words).strip()
    return line


def house_traversal(question: LiveQuestion, answer: str) -> float:
    """0 or 1: the last bold spans are the names one by one, or the last one contains all of them in order."""
    names = question.truth.lower().split(" ")
    spans = [text for _stars, text in re.findall(r"(\*{2,})(.*?)\1", answer.lower())]
    places = [spans[-1].find(name) for name in names] if spans else [-1]
    in_order = places[0] >= 0 and all(place < following for place, following in pairwise(places))
    return float(in_order or spans[-len(names) :] == names)


def sudoku(question: LiveQuestion, answer: str) -> float:
    """0 or 1: the first solution is the truth, ignoring blanks."""
    extracted = next(iter(solutions(answer, ANYWHERE)), "")
    return float(re.sub(r"\s+", "", extracted) == re.sub(r"\s+", "", question.truth))


def logic_with_navigation(question: LiveQuestion, answer: str) -> float:
    """0 or 1: the last solution contains the right pair of whole numbers, in parentheses if any pair is."""
    truth = question.ground_truth
    wanted = truth if isinstance(truth, list) else _pair(question.truth)
    extracted = _pair(last_solution(answer, ANYWHERE) or "")
    return float(extracted is not None and wanted is not None and extracted == list(wanted)[:2])


def _pair(text: str) -> list[int] | None:
    """The first pair in parentheses, else the first pair; None without any."""
    pair = r"(-?\d+)\s*,\s*(-?\d+)"
    for match in filter(None, (re.search(rf"\(\s*{pair}\s*\)", text), re.search(pair, text))):
        with suppress(ValueError):  # more digits than Python reads
            return [int(number) for number in match.groups()]
    return None
