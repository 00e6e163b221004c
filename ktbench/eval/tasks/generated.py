"""The nano model's tasks: generated questions, answered by a line."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from ktbench.eval.nano.question import STOP, Question, grade
from ktbench.eval.nano.tasks import HELD_OUT, SEED, TASKS, questions
from ktbench.eval.tasks.harness import GRADED, build
from ktbench.eval.tasks.loaded import BuiltTask
from ktbench.eval.tasks.rows import Row, Rows, Splits
from ktbench.eval.tasks.source import Source
from ktbench.spec.scored import SCORE
from ktbench.spec.suite import SuiteSpec

PER_TASK = 200  # questions where the suite sets no limit


def _read(name: str, suite: SuiteSpec) -> Splits:
    if suite.seed == SEED and (suite.limit or 0) > HELD_OUT:
        raise ValueError(
            f"limit={suite.limit}: training never shows the first {HELD_OUT} questions of suite.seed={SEED}, allowed "
            f"are 1 to {HELD_OUT}; other seeds may ask what it has shown"
        )
    asked = _of_all_tasks(suite.limit or PER_TASK, suite.seed)
    return {"test": Rows({"prompt": one.prompt, "question": one} for one in asked if one.task == name)}


_of_all_tasks = cache(questions)  # one call makes those of every task


def _grade(row: Row, answers: Sequence[str]) -> dict[str, float]:
    return {SCORE: float(grade(row["question"], answers[0]))}


def _build(name: str, splits: Splits, suite: SuiteSpec) -> BuiltTask:
    longest = max(len(_asked(row).answer.encode()) for row in splits["test"])
    config = {
        **GRADED,
        "task": f"nano_{name}",
        "output_type": "generate_until",
        "test_split": "test",
        "doc_to_text": "prompt",
        "doc_to_target": lambda row: _asked(row).answer,
        "process_results": _grade,
        # A token is a byte. What is twice as long as the longest answer is wrong however it goes on.
        "generation_kwargs": {"until": [STOP], "max_gen_toks": 2 * longest, "do_sample": False, "temperature": 0.0},
    }
    return BuiltTask(task=build(config, splits), setting="right where the line is the answer")


def _asked(row: Row) -> Question:
    question: Question = row["question"]
    return question


SOURCES = (Source(prefix="nano", names=tuple(task for _, task, _ in TASKS), read=_read, build=_build, ships=True),)
