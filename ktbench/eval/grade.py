"""The grade of an answer, and a graded answer of a task."""

from __future__ import annotations

from dataclasses import dataclass

from ktbench.spec.record import SCORE


@dataclass(frozen=True, slots=True)
class Grade:
    """The value of an answer, 0 to 1. None is one that cannot be graded here; `why` is the reason it is not 1."""

    value: float | None
    why: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class GradedAnswer:
    """One answer to a question with its value; the fields are those of `ktbench.spec.record.SampleResult`."""

    question: str
    metric: str = SCORE
    value: float | None
    weight: float = 1.0
    sample: int = 0
    tokens: int | None = None
    answer: str = ""
    why: str = ""
