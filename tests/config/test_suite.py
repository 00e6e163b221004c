"""A suite and what the command line says about it."""

from __future__ import annotations

import pytest

from ktbench.config import ModelFiles, compose, freeze, suite_names
from ktbench.spec.errors import RequestError
from ktbench.spec.suite import SuiteSpec
from tests.tiny import CONFIG


def suite(*words: str) -> SuiteSpec | None:
    return freeze(compose(["model=tiny", *words])).suite


@pytest.mark.parametrize("name", suite_names())
def test_every_suite_that_ships_composes(name: str) -> None:
    found = suite(f"+suite={name}")
    assert found is not None
    assert found.name == name
    assert found == suite(f"suite={name}")


def test_without_a_suite_nothing_is_asked() -> None:
    assert suite() is None


def test_the_command_line_has_its_say() -> None:
    found = suite("+suite=nano", "limit=5", "data_dir=somewhere", "confirm_unsafe=true", "suite.batch=7")
    assert found is not None
    assert (found.limit, found.data_dir, found.confirm_unsafe, found.batch) == (5, "somewhere", True, 7)


def test_a_part_that_asks_questions_is_run_by_itself() -> None:
    words = ["+ablation=decode,accuracy_deferral", "sweep.name=both"]
    with pytest.raises(RequestError, match="sweep.parts: accuracy_deferral is an evaluation, run it by itself"):
        freeze(compose(words), ModelFiles(checkpoints={"evals/nano": CONFIG}))


def test_an_ablation_of_a_suite_can_do_without_it() -> None:
    words = ["+ablation=formats", "model=tiny"]
    whole, without = (freeze(compose([*words, *more])) for more in ((), ("suite=null",)))
    assert whole.suite is not None and without.suite is None
    assert whole.parts == without.parts


def test_tasks_narrow_a_suite() -> None:
    whole, math = suite("+suite=nano"), suite("+suite=nano", "tasks=[math]")
    assert whole is not None
    assert math is not None
    assert math.tasks == tuple(task for task in whole.tasks if task.category == "math")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["+suite=nanu"], "suite=nanu: unknown, did you mean nano?; allowed are"),
        (["limit=5"], "limit: is for a suite, name one with"),
        (["tasks=[math]"], "tasks: is for a suite"),
        (["+suite=nano", "tasks=[poetry]"], "tasks=poetry: no such task or category; allowed are"),
        (["+suite=nano", "limit=0"], "limit=0"),
        (["+suite=nano", "limit=many"], "limit: expected"),
        (["+suite=nano", "suite.batches=2"], "suite.batches: unknown key, did you mean suite.batch?"),
    ],
)
def test_what_cannot_be_asked_is_refused_in_one_line(words: list[str], said: str) -> None:
    with pytest.raises(RequestError) as error:
        suite(*words)
    assert said in str(error.value)
    assert "\n" not in str(error.value)
