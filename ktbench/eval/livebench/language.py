"""Graders of LiveBench's language tasks: generated text → its score, 0 to 1."""

from __future__ import annotations

import re
from difflib import get_close_matches

from ktbench.eval.livebench.extraction import bold, edit_distance, items, last_boxed, last_solution, plain
from ktbench.eval.livebench.question import LiveQuestion

GROUP = 4


def typos(question: LiveQuestion, answer: str) -> float:
    """0 or 1: the truth is part of the last solution, else of what stands between ` --- ` marks, else of the text."""
    return float(_one_line(question.truth) in _one_line(_corrected(answer)))


def _corrected(answer: str) -> str:
    if (extracted := last_solution(answer)) is not None:
        return extracted
    marked = re.findall(r"(?<!-)---(?!-)(.+?)(?<!-)---(?!-)", answer, flags=re.DOTALL)
    return str(marked[-1]) if marked else answer


def _one_line(text: str) -> str:
    return " ".join(line.strip() for line in text.splitlines() if line.strip())


def connections(question: LiveQuestion, answer: str) -> float:
    """Partial: the fraction of groups found, of the best bold span until 2024-11-25, of the solution from then on."""
    truth = _groups(question.truth)
    listed = [last_solution(answer) or last_boxed(answer) or ""]
    extracted = listed if question.released >= "2024-11-25" else bold(answer)
    return max((len(_groups(plain(one)) & truth) / len(truth) for one in extracted), default=0.0)


def _groups(text: str) -> set[frozenset[str]]:
    words = items(_one_line(text))
    return {frozenset(words[at : at + GROUP]) for at in range(0, len(words), GROUP)}


def plot_unscrambling(question: LiveQuestion, answer: str) -> float:
    """Partial: one less the edit distance of the order of sentences over their number.

    Each true sentence stands where the sentence of the answer does that is nearest to it.
    """
    truth, extracted = _sentences(question.truth), _sentences(answer.rpartition("<PLOT_SUMMARY>")[2])
    nearest = [match for sentence in truth for match in get_close_matches(sentence, extracted, n=1, cutoff=0.0)]
    order = [extracted.index(match) for match in nearest]
    return 1 - edit_distance(order, range(len(truth))) / len(truth)


def _sentences(text: str) -> list[str]:
    sentences = (sentence.strip() for sentence in text.replace("</PLOT_SUMMARY>", "").split("."))
    return [sentence for sentence in sentences if sentence]
