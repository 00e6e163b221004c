"""The executor against a longest path that is computed task by task, and what no schedule may break."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ktbench.sim.graph import Execution, Graph, Task, execute
from ktbench.spec.timeline import RESOURCES, Resource


@st.composite
def graphs(draw: st.DrawFn) -> list[Task]:
    """Tasks of whole and half seconds, so that sums of floats are exact; some take none."""
    graph = Graph()
    for place in range(draw(st.integers(0, 25))):
        after = draw(st.sets(st.integers(0, place - 1), max_size=3)) if place else set()
        seconds = draw(st.integers(0, 8)) / 2
        graph.add(f"task {place}", "other", draw(st.sampled_from(RESOURCES)), seconds, *after)
    return graph.tasks


def longest_path_s(tasks: list[Task]) -> tuple[list[float], list[float]]:
    """Begin and end where each task follows what it waits for and the one before it on its resource."""
    begin: list[float] = []
    end: list[float] = []
    latest: dict[Resource, float] = {}
    for task in tasks:
        begin.append(max([latest.get(task.resource, 0.0), *(end[other] for other in task.after)]))
        end.append(begin[-1] + task.seconds)
        latest[task.resource] = end[-1]
    return begin, end


@given(graphs())
@example([])
def test_tasks_run_as_the_longest_path_says(tasks: list[Task]) -> None:
    begin, end = longest_path_s(tasks)
    execution = execute(tasks)
    assert execution == Execution(begin_s=tuple(begin), end_s=tuple(end))
    assert execution.total_s == max(end, default=0.0)


@given(graphs(), st.integers(0, 24), st.integers(1, 8))
def test_a_task_that_takes_longer_makes_nothing_end_earlier(tasks: list[Task], place: int, more: int) -> None:
    if place >= len(tasks):
        return
    slower = Graph()
    for at, task in enumerate(tasks):
        seconds = task.seconds + (more if at == place else 0)
        slower.add(task.name, task.kind, task.resource, seconds, *task.after)
    assert all(one <= other for one, other in zip(execute(tasks).end_s, execute(slower.tasks).end_s, strict=True))


def test_a_task_that_is_not_ready_holds_up_those_behind_it() -> None:
    graph = Graph()
    slow = graph.add("slow", "other", "host", 5.0)
    waiting = graph.add("waiting", "other", "device", 1.0, slow)
    behind = graph.add("behind", "other", "device", 1.0)
    execution = execute(graph.tasks)
    assert (execution.begin_s[waiting], execution.begin_s[behind]) == (5.0, 6.0)


def test_what_a_task_does_not_wait_for_is_left_out() -> None:
    graph = Graph()
    first = graph.add("first", "other", "host", 1.0, None)
    graph.add("second", "other", "host", 1.0, None, first, layer=3)
    assert [(task.after, task.layer) for task in graph.tasks] == [((), None), ((first,), 3)]


@pytest.mark.parametrize(("seconds", "after"), [(-1.0, ()), (1.0, (1,)), (1.0, (2,)), (1.0, (-1,))])
def test_less_than_no_time_and_tasks_that_are_not_there_are_refused(seconds: float, after: tuple[int, ...]) -> None:
    graph = Graph()
    graph.add("first", "other", "host", 1.0)
    with pytest.raises(ValueError, match=r"task bad: takes .* must be at least 0 s after earlier tasks"):
        graph.add("bad", "other", "host", seconds, *after)
    assert len(graph.tasks) == 1


def test_seconds_that_are_not_a_number_are_refused() -> None:
    with pytest.raises(ValueError, match="task bad"):
        Graph().add("bad", "other", "host", float("nan"))


@pytest.mark.parametrize("after", [(0,), (1,)])
def test_a_task_that_can_never_begin_is_refused(after: tuple[int, ...]) -> None:
    circle = Task(name="circle", kind="other", resource="host", seconds=1.0, after=after)
    behind = Task(name="behind", kind="other", resource="host", seconds=1.0)
    with pytest.raises(ValueError, match="circle"):
        execute([circle, behind])
