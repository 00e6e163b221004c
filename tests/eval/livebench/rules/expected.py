"""What LiveBench's rules (commit b0fb577) make of an answer, restated from them alone to derive expected scores."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from tests.eval.livebench.rules import numbers, tables, words
from tests.eval.livebench.rules.instructions import following
from tests.eval.livebench.rules.programs import programs

Row = Mapping[str, Any]

_OF_ROWS: Mapping[str, Callable[[Row, str], float]] = {
    "math_comp": numbers.math_comp,
    "olympiad": numbers.olympiad,
    "AMPS_Hard": numbers.amps_hard,
    "integrals_with_game": numbers.integrals_with_game,
    "tablejoin": tables.tablejoin,
    "tablereformat": tables.tablereformat,
    "consecutive_events": tables.consecutive_events,
    "LCB_generation": programs,
    "coding_completion": programs,
    **dict.fromkeys(("paraphrase", "simplify", "story_generation", "summarize"), following),
}


def expected(row: Row, answer: str) -> float:
    """The score of an answer. Thoughts go first, and where a grader fails the score is 0."""
    answer = re.sub("(?s)<think>.*?</think>", "", answer)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            if of_row := _OF_ROWS.get(row["task"]):
                return of_row(row, answer)
            return float(getattr(words, row["task"])(row["truth"], answer, row["released"]))
        except Exception:
            return 0.0
