"""What scores are of: single tasks, categories of them, all of them; and what each task counts for there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from ktbench.spec.suite import SuiteSpec, TaskSpec

SubjectKind = Literal["average", "category", "task"]
AVERAGE = "average"


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """Tasks that have one score together."""

    kind: SubjectKind
    name: str
    tasks: tuple[TaskSpec, ...]


def subjects_of(suite: SuiteSpec, graded: Collection[str]) -> tuple[Subject, ...]:
    """The average of all `graded` tasks (names), then categories where there are several, then the tasks."""
    tasks = tuple(task for task in suite.tasks if task.name in graded)
    return tuple(_subjects(tasks)) if tasks else ()


def _subjects(tasks: tuple[TaskSpec, ...]) -> Iterator[Subject]:
    yield Subject(kind="average", name=AVERAGE, tasks=tasks)
    categories = tuple(dict.fromkeys(task.category for task in tasks if task.category))
    for name in categories if len(categories) > 1 else ():
        yield Subject(kind="category", name=name, tasks=tuple(task for task in tasks if task.category == name))
    for task in tasks:
        yield Subject(kind="task", name=task.name, tasks=(task,))


def shares_of(subject: Subject, suite: SuiteSpec, counts: Mapping[str, int]) -> dict[str, float]:
    """Each task's share of the subject's score; they sum to 1. Tasks without a question in `counts` have none."""
    told = [task for task in subject.tasks if counts.get(task.name)]
    if suite.average == "questions":
        total = sum(counts[task.name] for task in told)
        return {task.name: counts[task.name] / total for task in told}
    if subject.kind == "average" and suite.average == "categories":
        sizes = Counter(task.category for task in told)
        return {task.name: 1 / (len(sizes) * sizes[task.category]) for task in told}
    return {task.name: 1 / len(told) for task in told}
