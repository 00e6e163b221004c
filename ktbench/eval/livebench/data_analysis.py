"""Graders of LiveBench's data analysis tasks, tables excepted: what a model wrote → its score, 0 to 1."""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Hashable, Mapping

from ktbench.eval.livebench.extraction import last_boxed, last_solution, plain
from ktbench.eval.livebench.question import LiveQuestion

LONGEST = 20_000  # characters of a dictionary that is read


def cta(question: LiveQuestion, answer: str) -> float:
    """0 or 1: the box, else the whole text, is the name of the class or ends with it; only word characters count."""
    boxed = last_boxed(answer)
    said, truth = _word(answer if boxed is None else plain(boxed)), _word(question.truth)
    return float(said.endswith(truth))


def _word(text: str) -> str:
    return re.sub(r"\W", "", text.lower())


def tablejoin(question: LiveQuestion, answer: str) -> float:
    """Partial: F1 of the mapping's entries, to two decimals. A wrong value counts as wrong and as missing."""
    said, truth = _mapping(answer), _mapping(question.truth)
    right, wrong, missing = _tally(said, truth)
    return round(2 * right / (2 * right + wrong + missing), 2)


def consecutive_events(question: LiveQuestion, answer: str) -> float:
    """Partial: right over all entries of a list of users and values, to four decimals; as in `tablejoin`."""
    said, truth = _events(last_solution(answer) or ""), _events(question.truth)
    right, wrong, missing = _tally(said, truth)
    return round(right / (right + wrong + missing), 4)


def _tally(said: Mapping[Hashable, object], truth: Mapping[Hashable, object]) -> tuple[int, int, int]:
    """Entries that are right, wrong (unknown key or wrong value), and missing or with another value."""
    right = sum(key in truth and truth[key] == value for key, value in said.items())
    return right, len(said) - right, len(truth) - right


def _mapping(text: str) -> dict[Hashable, object]:
    """The last `{…}` of a text, as JSON or Python writes it, without entries that are null; empty without any."""
    for found in reversed(re.findall(r"\{[^{}]*\}", text[-LONGEST:])):
        if isinstance(read := _read(found), dict):
            return {key: value for key, value in read.items() if value is not None}
    return {}


def _events(text: str) -> dict[Hashable, object]:
    """The value of each user of a JSON list of objects with user_id; empty for what is no such list."""
    rows = _read(text.strip())
    if not isinstance(rows, list) or not all(isinstance(row, dict) and "user_id" in row for row in rows):
        return {}
    return {str(row["user_id"]): {key: value for key, value in row.items() if key != "user_id"} for row in rows}


def _read(text: str) -> object:
    """What JSON or a Python literal says; None for what is neither."""
    for reader in (json.loads, _literal):
        try:
            read: object = reader(text)
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            continue
        return read
    return None


def _literal(text: str) -> object:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the parser's, of escapes in a model's strings
        return ast.literal_eval(re.sub(r":\s*null\b", ": None", text))
