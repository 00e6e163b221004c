"""The nano model's tasks for lm-eval: the published evaluation's questions, and their grader."""

from __future__ import annotations

from functools import cache
from random import Random

from ktbench.eval.tasks.harness import GRADED, BuiltTask, QuestionSource, build
from ktbench.eval.tasks.nano_questions import STOP, TASKS, NanoTask, Question, grade
from ktbench.eval.tasks.rows import Rows, Splits
from ktbench.spec.record import SCORE
from ktbench.spec.suite import SuiteSpec

SEED = 7  # of the published evaluation
MOST = 500  # questions of each task, all with different contents
PER_TASK = 200  # questions if the suite sets no limit


@cache
def questions(per_task: int, seed: int = SEED) -> tuple[Question, ...]:
    """The first `per_task` evaluation questions of each task; a longer list begins with a shorter one.

    All contents within a task differ, and training uses none of them. The same on every platform: all draws come from
    `random.Random`, seeded by text. Raises ValueError for less than 1 or more than `MOST`.
    """
    if not 1 <= per_task <= MOST:
        raise ValueError(f"per_task={per_task} must be from 1 to {MOST}")
    return tuple(question for task in TASKS for question in _first(task, per_task, seed))


def _first(task: NanoTask, count: int, seed: int) -> list[Question]:
    random = Random(f"evaluation/{seed}/{task.category}/{task.name}")
    by_content: dict[str, Question] = {}
    while len(by_content) < count:
        question = task.evaluated(random)
        by_content.setdefault(question.content, question)
    return list(by_content.values())


def _read(name: str, suite: SuiteSpec) -> Splits:
    """The questions of a task, named by level and number."""
    if (suite.limit or 0) > MOST:
        raise ValueError(
            f"limit={suite.limit}: allowed are 1 to {MOST} for the questions of nano, whose contents differ"
        )
    drawn = [question for question in questions(suite.limit or PER_TASK, suite.seed) if question.task == name]
    return {
        "test": Rows(
            {"name": f"{question.level}/{number}", "prompt": question.prompt, "question": question}
            for number, question in enumerate(drawn)
        )
    }


def _build(name: str, splits: Splits, suite: SuiteSpec) -> BuiltTask:
    longest = max(len(row["question"].answer.encode()) for row in splits["test"])
    config = {
        **GRADED,
        "task": f"nano_{name}",
        "output_type": "generate_until",
        "test_split": "test",
        "doc_to_text": "prompt",
        "doc_to_target": lambda row: row["question"].answer,
        "process_results": lambda row, answers: {SCORE: float(grade(row["question"], answers[0]))},
        # A token is a byte. An answer twice as long as the longest right one is wrong in any case.
        "generation_kwargs": {"until": [STOP], "max_gen_toks": 2 * longest, "do_sample": False, "temperature": 0.0},
    }
    return BuiltTask(
        task=build(config, splits),
        identity="name",
        right=lambda row: (row["prompt"], f"{row['question'].answer}{STOP}"),
        setting="right where the line is the answer",
    )


SOURCES = (
    QuestionSource(prefix="nano", names=tuple(task.name for task in TASKS), read=_read, build=_build, ships=True),
)
