"""Suites refuse what cannot be asked, and can be narrowed to some of their tasks."""

from __future__ import annotations

import pytest

from ktbench.spec.suite import SuiteSpec, TaskSpec, only

TASKS = (
    TaskSpec(name="sum", source="nano/sum", category="math"),
    TaskSpec(name="sort", source="nano/sort", category="data"),
    TaskSpec(name="product", source="nano/product", category="math"),
)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"shots": -1}, "shots=-1"),
        ({"samples": 0}, "samples=0"),
        ({"samples": 10}, "greedy answers are all alike"),
        ({"temperature": -0.5}, "temperature=-0.5"),
        ({"top_p": 0.0}, "top_p=0.0"),
        ({"top_p": 1.5}, "top_p=1.5"),
        ({"max_new_tokens": 0}, "max_new_tokens=0"),
    ],
)
def test_a_task_refuses_what_cannot_be_asked(changes: dict[str, float], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        TaskSpec(name="sum", source="nano/sum", **changes)  # type: ignore[arg-type]


def test_what_is_measured_is_told_by_its_source() -> None:
    sources = ("wikitext2", "drift/decode", "drift/prefill", "nano/sum", "lm_eval/wikitext")
    found = [TaskSpec(name="task", source=source).is_measured for source in sources]
    assert found == [True, True, True, False, False]


def test_a_suite_needs_tasks_of_different_names() -> None:
    with pytest.raises(ValueError, match="suite=s: has no tasks"):
        SuiteSpec(name="s", tasks=())
    with pytest.raises(ValueError, match="two tasks are called sum"):
        SuiteSpec(name="s", tasks=(TASKS[0], TASKS[0]))
    with pytest.raises(ValueError, match="limit=0"):
        SuiteSpec(name="s", tasks=TASKS, limit=0)


def test_categories_are_in_the_order_of_their_tasks() -> None:
    assert SuiteSpec(name="s", tasks=TASKS).categories == ("math", "data")


def test_tasks_are_chosen_by_name_or_category_in_the_order_of_the_suite() -> None:
    assert [task.name for task in only(TASKS, ["product", "data"])] == ["sort", "product"]
    assert only(TASKS, ["math"]) == (TASKS[0], TASKS[2])
    with pytest.raises(ValueError, match="tasks=poetry: no such task or category; allowed are data, math, product"):
        only(TASKS, ["poetry"])
