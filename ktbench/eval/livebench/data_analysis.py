"""Graders for LiveBench's data analysis tasks by its own rules: generated text → score, 0 to 1."""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from ktbench.eval.livebench.extraction import ANYWHERE, last_box, last_solution, without
from ktbench.eval.livebench.question import LiveQuestion


def cta(question: LiveQuestion, answer: str) -> float:
    """0 or 1: the last box, else the whole text, ends with the name of the class; only word characters count."""
    extracted, truth = answer, _word(question.truth)
    if r"\boxed{" in answer:
        if (boxed := last_box(answer)) is None:
            raise ValueError("a box that does not close")  # LiveBench's grader fails on it
        extracted = without(boxed, r"\text{", "}", "\\")
    return float(_word(extracted).endswith(truth))


def _word(text: str) -> str:
    return re.sub(r"\W", "", text.lower())


def tablejoin(question: LiveQuestion, answer: str) -> float:
    """Partial: F1 of the mapping's entries, to two decimals. A wrong value counts as wrong and as missing."""
    held = question.ground_truth
    truth: Mapping[Any, object] = held if isinstance(held, dict) else ast.literal_eval(question.truth)
    extracted = _mapping(answer)
    right = sum(bool(truth.get(key)) and truth[key] == value for key, value in extracted.items())
    wrong = len(extracted) - right
    missing = sum(not extracted.get(key) for key in truth)
    missing += sum(bool(truth.get(key)) and truth[key] != value for key, value in extracted.items())
    return float(np.round(2 * right / (2 * right + wrong + missing), 2)) if extracted else 0.0


def _mapping(text: str) -> Mapping[object, object]:
    """The dictionary in a text, or in its last solution, fence or box, without entries that are None."""
    while marked := re.findall(r"<solution>(.*?)</solution>", text, re.DOTALL):
        text = marked[-1].strip()
    try:
        read = _literal(text)
    except Exception:  # whatever the parser raises about a text
        read = _literal_or_none(_fence_or_box(text).replace("null", "None"))
    return {key: value for key, value in read.items() if value is not None} if isinstance(read, dict) else {}


def _fence_or_box(text: str) -> str:
    """The content of the last fence with or without a language, else of the last box, else the text."""
    line = text.replace("\n", "")
    for opening in ("```python", "```json", "```"):
        if fenced := re.findall(rf"{opening}(.*?)```", line):
            return str(fenced[-1])
    boxed = last_box(line) if r"\boxed" in text else None
    return text if boxed is None else re.sub(r"\\text{['|\"](.*?)['|\"]}", r"'\1'", boxed).replace("\\", "")


def _literal_or_none(text: str) -> object:
    try:
        return _literal(text)
    except Exception:  # whatever the parser raises about a text
        return None


def _literal(text: str) -> object:
    """The value of a Python literal. Raises what the parser raises."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of escapes in a model's strings
        return ast.literal_eval(text)


VALUE = "max_consecutive_growth_months"


def consecutive_events(question: LiveQuestion, answer: str) -> float:
    """Partial: right over all entries of a list of users and values, to four decimals; as in `tablejoin`.

    Entries are objects with a user_id, of which the last counts; other keys do not. Other items are left out.
    """
    held: list[Any] = json.loads(question.truth)
    extracted = _last_solution_json(answer)
    if not held or not extracted:
        return float(extracted is not None and not held and not extracted)
    truth = {row["user_id"]: row[VALUE] for row in held}
    given = {row["user_id"]: row.get(VALUE) for row in extracted if isinstance(row, dict) and "user_id" in row}
    right = sum(user in truth and truth[user] == value for user, value in given.items())
    return float(round(right / (len(given) + len(truth) - right), 4))


def _last_solution_json(answer: str) -> list[object] | None:
    """The JSON of the last solution; None without JSON. Raises TypeError if it is not a list."""
    try:
        return list(json.loads(last_solution(answer, ANYWHERE) or ""))
    except (ValueError, RecursionError):
        return None
