"""The suites that ship, and the published data where it is at hand."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import yaml

from ktbench.eval.evaluate import evaluate_task
from ktbench.eval.tasks.sources import SOURCES, describe_suite, find_source, load_task
from ktbench.resources import data_folder
from ktbench.spec.suite import SuiteSpec
from ktbench.spec.wire import from_plain
from tests.eval.conftest import SHARED, needs_shared_data
from tests.eval.tasks.scripted import ScriptedLM, a_number

SUITES = {path.stem: path for path in sorted(data_folder("evals").glob("*.yaml"))}


def read(name: str) -> SuiteSpec:
    return from_plain(yaml.safe_load(SUITES[name].read_text()), SuiteSpec)


@pytest.mark.parametrize("name", SUITES)
def test_every_suite_is_whole(name: str) -> None:
    suite = read(name)
    assert suite.name == name
    assert suite.title
    assert SUITES[name].read_text().startswith("# ")
    assert (suite.data_dir, suite.limit, suite.confirm_unsafe) == (None, None, False)
    for task in suite.tasks:
        if not task.is_measured:
            source, _ = find_source(task)
            assert source is SOURCES[source.prefix]
    assert describe_suite(replace(suite, confirm_unsafe=True)).startswith(f"{len(suite.tasks)} tasks, ")


def test_suites_have_the_published_tasks() -> None:
    mmlu = Counter(task.category for task in read("mmlu").tasks)
    assert mmlu == {"STEM": 19, "humanities": 13, "social_sciences": 12, "other": 13}
    live = Counter(task.category for task in read("livebench").tasks)
    assert live == {
        "reasoning": 3,
        "math": 3,
        "coding": 2,
        "language": 3,
        "data_analysis": 3,
        "instruction_following": 4,
    }
    assert [task.name for task in read("livebench_paper").tasks] == [task.name for task in read("livebench").tasks]
    assert {(task.samples, task.temperature) for task in read("livebench_paper").tasks} == {(10, 0.3)}
    assert read("nano").categories == read("livebench").categories
    assert {task.source for task in read("nano").tasks} == {f"nano/{name}" for name in SOURCES["nano"].names or ()}


@needs_shared_data
@pytest.mark.parametrize(
    ("name", "questions"), [("mmlu", 14042), ("gsm8k", 1319), ("humaneval", 164), ("mbpp", 500), ("livebench", 989)]
)
def test_published_data_is_read_whole(name: str, questions: int) -> None:
    suite = replace(read(name), data_dir=str(SHARED), confirm_unsafe=True)
    assert describe_suite(suite) == f"{len(suite.tasks)} tasks, {questions:,} questions"
    assert describe_suite(replace(suite, data_dir=str(SHARED / name))) == describe_suite(suite)


@needs_shared_data
@pytest.mark.parametrize("name", ["mmlu", "gsm8k", "mbpp", "livebench"])
def test_published_questions_are_asked(name: str) -> None:
    suite = replace(read(name), data_dir=str(SHARED), confirm_unsafe=True, limit=2)
    lm = ScriptedLM(a_number)
    for task in suite.tasks[:: max(1, len(suite.tasks) // 6)]:
        answers = list(evaluate_task(load_task(task, suite), lm, suite))
        assert len(answers) == 2
        assert all(one.value is not None or one.why for one in answers)
        assert all(one.value is None or 0 <= one.value <= 1 for one in answers)
