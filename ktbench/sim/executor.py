"""The discrete-event executor: tasks on resources that work one task at a time, in the order they were submitted."""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections import defaultdict, deque
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
    """Plays tasks by events: each resource starts its next task when it is free and what the task waits for has ended.

    Resources keep the order of submission (a CUDA stream, a queue of calls): a task that is not ready holds up those
    behind it. Raises ValueError for tasks that wait for each other.
    """
    waiting = [len(task.after) for task in tasks]
    waiters: dict[int, list[int]] = defaultdict(list)
    queues: dict[Resource, deque[int]] = defaultdict(deque)
    for place, task in enumerate(tasks):
        queues[task.resource].append(place)
        for other in task.after:
            waiters[other].append(place)
    begin, end = [0.0] * len(tasks), [0.0] * len(tasks)
    working: set[Resource] = set()
    events: list[tuple[float, int]] = []

    def start(resource: Resource, now: float) -> None:
        if resource in working or not queues[resource] or waiting[queues[resource][0]]:
            return
        place = queues[resource].popleft()
        begin[place], end[place] = now, now + tasks[place].seconds
        working.add(resource)
        heapq.heappush(events, (end[place], place))

    for resource in list(queues):
        start(resource, 0.0)
    while events:
        now, place = heapq.heappop(events)
        working.discard(tasks[place].resource)
        for other in waiters[place]:
            waiting[other] -= 1
        for resource in dict.fromkeys([tasks[place].resource, *(tasks[other].resource for other in waiters[place])]):
            start(resource, now)
    if any(queues.values()):
        raise ValueError(f"task {tasks[min(queue[0] for queue in queues.values() if queue)].name}: can never begin")
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
