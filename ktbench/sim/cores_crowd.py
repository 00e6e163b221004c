"""Two roles that read the same memory: a task takes longer while the other role works."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace

from ktbench.sim.executor import Graph, Played, Task, play
from ktbench.spec.timeline import Resource

# Each play moves tasks, and with them what they overlap; more of them change a step by less than 1 %.
_PLAYS = 8


def settled(alone: Graph, crowded: Graph) -> Graph:
    """The tasks of `alone` with the seconds that they take in each other's company.

    `crowded` has the same tasks, each at the read bandwidth that is left to it while the other role works. A task does
    its work at both speeds, one after the other: with a share c of its time crowded it takes 1 / ((1 - c)/a + c/b).
    """
    tasks = list(alone.tasks)
    for number in range(_PLAYS):
        shares = _crowded_shares(tasks, play(tasks))
        met = [_met(a.seconds, b.seconds, c) for a, b, c in zip(alone.tasks, crowded.tasks, shares, strict=True)]
        weight = 1.0 if number == 0 else 0.5  # halfway, as what overlaps may swing to and fro
        tasks = [
            replace(task, seconds=task.seconds + weight * (seconds - task.seconds))
            for task, seconds in zip(tasks, met, strict=True)
        ]
    return Graph(tasks=tasks)


def _met(alone_s: float, crowded_s: float, share: float) -> float:
    if alone_s == 0:
        return 0.0
    return 1 / ((1 - share) / alone_s + share / crowded_s)


def _crowded_shares(tasks: Sequence[Task], played: Played) -> list[float]:
    """Of each task the share of its time in which another resource works."""
    busy: dict[Resource, list[tuple[float, float]]] = {"host": [], "device": []}
    for task, begin, end in zip(tasks, played.begin_s, played.end_s, strict=True):
        if end > begin:
            busy[task.resource].append((begin, end))
    other: dict[Resource, Resource] = {"host": "device", "device": "host"}
    spans = zip(tasks, played.begin_s, played.end_s, strict=True)
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
