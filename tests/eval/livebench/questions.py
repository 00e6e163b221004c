"""Questions made by hand, and where LiveBench's own are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ktbench.eval.livebench.graders import grade_answer
from ktbench.eval.livebench.question import LiveQuestion

LIVEBENCH = Path(__file__).parents[4] / "shared" / "data" / "livebench"
REAL = pytest.mark.skipif(not LIVEBENCH.is_dir(), reason="no shared data folder next to this checkout")


def live_question(
    task: str, truth: str | None, *, prompt: str = "?", released: str = "2024-06-24", **rest: Any
) -> LiveQuestion:
    return LiveQuestion(
        question_id="q",
        category="c",
        task=task,
        turns=(prompt,),
        ground_truth=truth,
        released=released,
        **rest,
    )


def score(question: LiveQuestion, answer: str) -> float | None:
    graded = grade_answer(question, answer)
    assert not graded.why, graded.why
    return graded.value
