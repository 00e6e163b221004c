"""One question of a generated task, and how its answer is graded."""

from __future__ import annotations

from dataclasses import dataclass

STOP = "\n"  # ends every answer in training, and every generated answer


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """A prompt with its one right answer; the model continues the prompt with the answer and `STOP`."""

    category: str
    task: str
    prompt: str
    answer: str

    def __post_init__(self) -> None:
        if STOP in self.prompt or STOP in self.answer:
            raise ValueError(f"question of {self.task}: neither prompt nor answer may hold a line break")
        if not self.answer.strip():
            raise ValueError(f"question of {self.task}: the answer is empty")


def grade(question: Question, answer: str) -> bool:
    """Whether what the model wrote is the answer, up to blanks around it."""
    return answer.strip() == question.answer.strip()
