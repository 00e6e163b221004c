"""LiveBench: one prompt per question, with our own graders."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from ktbench.eval.livebench.graders import GRADERS, grade_answer, why_ungradable
from ktbench.eval.livebench.loading import RELEASE, absent, checked_release, is_in_release, read_questions
from ktbench.eval.livebench.question import LiveQuestion, read_row
from ktbench.eval.tasks.harness import GRADED, BuiltTask, QuestionSource, build, hub_rows
from ktbench.eval.tasks.rows import Row, Rows, Splits
from ktbench.spec.record import SCORE
from ktbench.spec.suite import SuiteSpec

_LONGEST = 4096  # tokens of an answer, LiveBench's default


def _read(name: str, suite: SuiteSpec) -> Splits:
    category, _, task = name.partition("/")
    release = checked_release(suite.release or RELEASE)
    if suite.data_dir is None:
        questions = _hub(category, task, release)
    else:
        questions = read_questions(_folder(suite.data_dir), release, {task})
    rows = Rows(map(_row, (question for question in questions if question.category == category)))
    if not rows:
        raise ValueError(f"livebench/{name}: release {release} has no such questions")
    return {"test": rows}


def _hub(category: str, task: str, release: str) -> Iterable[LiveQuestion]:
    rows = (row for row in hub_rows(f"livebench/{category}")["test"] if row["task"] == task)
    questions = (read_row(json.dumps(row, default=str).encode()) for row in rows)
    return (question for question in questions if is_in_release(question, release))


def _folder(data_dir: str) -> Path:
    own = Path(data_dir) / "livebench"
    return own if own.is_dir() else Path(data_dir)


def _row(question: LiveQuestion) -> Row:
    return {
        "question_id": question.question_id,
        "prompt": question.prompt,
        "system_prompt": question.system_prompt,
        "question": question,
    }


def _build(name: str, splits: Splits, suite: SuiteSpec) -> BuiltTask:
    config = {
        **GRADED,
        "task": f"livebench_{name.replace('/', '_')}",
        "output_type": "generate_until",
        "test_split": "test",
        "description": "system_prompt",
        "doc_to_text": "prompt",
        "doc_to_target": "question_id",
        "process_results": lambda row, answers: {
            SCORE: grade_answer(row["question"], answers[0], confirm_unsafe=suite.confirm_unsafe)
        },
        "generation_kwargs": {"until": [], "max_gen_toks": _LONGEST, "do_sample": False, "temperature": 0.0},
    }
    return BuiltTask(
        task=build(config, splits),
        identity="question_id",
        lacks=lambda row: why_ungradable(row["question"], confirm_unsafe=suite.confirm_unsafe),
        setting="; ".join(filter(None, _settings(name, splits, suite))),
    )


def _settings(name: str, splits: Splits, suite: SuiteSpec) -> Iterator[str]:
    """How answers are graded, and what is missing from the files."""
    category, _, task = name.partition("/")
    if task in GRADERS:
        yield GRADERS[task].described()
    rows = splits["test"]
    if partly := sum(row["question"].is_partly_tested for row in rows):
        yield f"{partly} of {len(rows)} questions with only part of their tests: scores are upper bounds"
    if suite.data_dir is not None:
        yield absent(_folder(suite.data_dir), suite.release or RELEASE, category, task)


SOURCES = (QuestionSource(prefix="livebench", names=None, read=_read, build=_build),)
