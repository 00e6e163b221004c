"""Questions made by hand, and where LiveBench's own are."""

from __future__ import annotations

from typing import Any

from ktbench.eval.livebench.graders import grade_answer
from ktbench.eval.livebench.question import LiveQuestion, Truth
from tests.eval.conftest import SHARED

LIVEBENCH = SHARED / "livebench"


def live_question(
    task: str, truth: Truth | None, *, prompt: str = "?", released: str = "2024-06-24", **rest: Any
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
