"""The task graph of a step, and when its tasks run: each resource works one task at a time, in order of submission."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ktbench.spec.timeline import Resource

# Each iteration moves tasks, and with them what they overlap; more of them change a step by less than 1 %.
_ITERATIONS = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """Work of `seconds` on a resource, once all tasks `after` (by their place in the graph) have ended.

    `layer` counts decoder layers from 0, None for what belongs to none; `kind` is that of a `Span`.
    """

    name: str
    kind: str
    resource: Resource
    seconds: float
    after: tuple[int, ...] = ()
    layer: int | None = None


@dataclass(slots=True)
class Graph:
    """Tasks in the order of their submission; a task can only wait for earlier ones, so that there are no cycles."""

    tasks: list[Task] = field(default_factory=list)

    def add(
        self, name: str, kind: str, resource: Resource, seconds: float, *after: int | None, layer: int | None = None
    ) -> int:
        """The place of a new task. Raises ValueError for seconds below 0 and for a task that is not there yet."""
        needed = tuple(task for task in after if task is not None)
        if not seconds >= 0 or any(not 0 <= task < len(self.tasks) for task in needed):
            raise ValueError(f"task {name}: takes {seconds} s after {needed}, must be at least 0 s after earlier tasks")
        self.tasks.append(Task(name=name, kind=kind, resource=resource, seconds=seconds, after=needed, layer=layer))
        return len(self.tasks) - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Execution:
    """When each task of a graph began and ended, in seconds."""

    begin_s: tuple[float, ...]
    end_s: tuple[float, ...]

    @property
    def total_s(self) -> float:
        """The end of the last task."""
        return max(self.end_s, default=0.0)


def busy_share(tasks: Sequence[Task], resource: Resource) -> float:
    """Share of the time that tasks take in which a resource works."""
    busy_s = sum(task.seconds for task in tasks if task.resource == resource)
    return busy_s / execute(tasks).total_s


def execute(tasks: Sequence[Task]) -> Execution:
    """When tasks run: each begins when its resource is free and the tasks that it waits for have ended.

    Resources keep the order of submission (a CUDA stream, a queue of calls): a task that is not ready delays those
    behind it. Raises ValueError for a task that waits for itself or for a later one.
    """
    begin, end = [0.0] * len(tasks), [0.0] * len(tasks)
    free: dict[Resource, float] = {}
    for place, task in enumerate(tasks):
        if any(other >= place for other in task.after):
            raise ValueError(f"task {task.name}: can never begin")
        begin[place] = max([free.get(task.resource, 0.0), *(end[other] for other in task.after)])
        free[task.resource] = end[place] = begin[place] + task.seconds
    return Execution(begin_s=tuple(begin), end_s=tuple(end))


def apply_contention(alone: Graph, contended: Graph) -> Graph:
    """The tasks of `alone` with the seconds that they take while both roles read the same memory.

    `contended` has the same tasks, each at the read bandwidth that is left to it while the other role works. A task
    does its work at both speeds, one after the other: with a share c of its time contended it takes
    1 / ((1 - c)/a + c/b).
    """
    tasks = list(alone.tasks)
    for number in range(_ITERATIONS):
        shares = _contended_shares(tasks, execute(tasks))
        slowed = [
            _slowed_s(a.seconds, b.seconds, c) for a, b, c in zip(alone.tasks, contended.tasks, shares, strict=True)
        ]
        weight = 1.0 if number == 0 else 0.5  # halfway, as what overlaps may swing to and fro
        tasks = [
            replace(task, seconds=task.seconds + weight * (seconds - task.seconds))
            for task, seconds in zip(tasks, slowed, strict=True)
        ]
    return Graph(tasks=tasks)


def _slowed_s(alone_s: float, contended_s: float, share: float) -> float:
    if alone_s == 0:
        return 0.0
    return 1 / ((1 - share) / alone_s + share / contended_s)


def _contended_shares(tasks: Sequence[Task], execution: Execution) -> list[float]:
    """Of each task the share of its time in which another resource works."""
    busy: dict[Resource, list[tuple[float, float]]] = {"host": [], "device": []}
    for task, begin, end in zip(tasks, execution.begin_s, execution.end_s, strict=True):
        if end > begin:
            busy[task.resource].append((begin, end))
    other: dict[Resource, Resource] = {"host": "device", "device": "host"}
    spans = zip(tasks, execution.begin_s, execution.end_s, strict=True)
    return [_covered(begin, end, busy[other[task.resource]]) for task, begin, end in spans]


def _covered(begin: float, end: float, spans: Sequence[tuple[float, float]]) -> float:
    """Share of a span that `spans`, in order and apart, cover."""
    if end <= begin:
        return 0.0
    first = bisect_left(spans, begin, key=lambda span: span[1])
    inside = 0.0
    for other_begin, other_end in spans[first:]:
        if other_begin >= end:
            break
        inside += min(end, other_end) - max(begin, other_begin)
    return inside / (end - begin)
