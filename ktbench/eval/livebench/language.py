"""Graders for LiveBench's language tasks by its own rules: generated text → score, 0 to 1."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches

from ktbench.eval.livebench.extraction import (
    edit_distance,
    last_box,
    last_solution,
    solutions,
    solutions_or_between,
    without,
)
from ktbench.eval.livebench.question import LiveQuestion

GROUP = 4


def typos(question: LiveQuestion, answer: str) -> float:
    """0 or 1: the truth is part of the last solution, else of the text between two ` --- `, else of the text."""
    extracted = last_solution(answer)
    if extracted is None:
        text = without(answer, "<solution>", "</solution>")
        marked = re.search(r".* --- (.*?) --- .*", text)
        extracted = marked[1] if marked else text
    return float(question.truth in " ".join(filter(None, extracted.strip().split("\n"))))


def connections(question: LiveQuestion, answer: str) -> float:
    """Partial: the fraction of correct groups, in the best bold span until 2024-11-25, in the solution from then on."""
    truth = _groups(question.truth.split(","))
    if question.released >= "2024-11-25":
        given = _groups(_solution_words(answer, question.truth.count(",") + 1))
        return sum(group in truth for group in given) / len(truth)
    spans = re.findall(r"\*\*(.*?)\*\*", answer.replace("\n", ""))
    bold = [_groups(span.split(",")) for span in spans]
    correct = (sum(any(group <= candidate for candidate in given) for group in truth) for given in bold)
    return max(correct, default=0) / len(truth)


def _groups(words: Iterable[str]) -> list[set[str]]:
    """The words in lower case, in groups of four different ones."""
    groups: list[set[str]] = [set()]
    for word in words:
        if len(groups[-1]) == GROUP:
            groups.append(set())
        groups[-1].add(word.strip().lower())
    return groups


def _solution_words(answer: str, count: int) -> list[str]:
    """The words of the solution, else of the last box; with several solutions the last `count` words."""
    marked = _marked_parts(answer)
    if not marked and r"\boxed" in answer:
        if (boxed := last_box(answer)) is None:
            raise ValueError("a box that does not close")  # LiveBench's grader fails on it
        marked = [without(boxed, r"\text{", "}", "\\")]
    words = [word for part in marked for word in part.replace("\n", "").split(",")]
    return words[-count:] if len(marked) > 1 else words


def _marked_parts(answer: str) -> list[str]:
    """The solutions within lines, else across them; without any, the text between two closing tags, likewise."""
    texts = (answer, answer.replace("\n", ""))
    return next(filter(None, map(solutions, texts)), None) or next(filter(None, map(solutions_or_between, texts)), [])


def plot_unscrambling(question: LiveQuestion, answer: str) -> float:
    """Partial: 1 minus the edit distance of the order of sentences over their number.

    Each true sentence takes the position of the answer's nearest sentence.
    """
    truth, extracted = _sentences(question.truth), _sentences(_summary(answer), "</PLOT_SUMMARY>", _END)
    nearest = [match for sentence in truth for match in get_close_matches(sentence, extracted, n=1, cutoff=0.0)]
    order = [extracted.index(match) for match in nearest]
    return 1 - edit_distance(range(len(truth)), order) / len(truth)


_END = "**End of Plot Summary**"


def _summary(answer: str) -> str:
    """The text in the tags, else after the first opening one, else the whole text."""
    for pattern in (r"<PLOT_SUMMARY>(.*)</PLOT_SUMMARY>", r"<PLOT_SUMMARY>(.*)"):
        if match := re.search(pattern, answer, re.DOTALL):
            return match[1]
    return answer


def _sentences(text: str, *no_sentences: str) -> list[str]:
    sentences = (sentence.strip() for sentence in text.split("."))
    return [sentence for sentence in sentences if sentence and sentence not in no_sentences]
