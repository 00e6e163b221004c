"""The spans of a played graph."""

from __future__ import annotations

from collections.abc import Iterator

from ktbench.sim.executor import Graph, Played
from ktbench.spec.timeline import Span


def spans_of(graph: Graph, played: Played) -> Iterator[Span]:
    """In order of their begin; tasks that take no time only order others."""
    for place in sorted(range(len(graph.tasks)), key=lambda one: (played.begin_s[one], one)):
        task = graph.tasks[place]
        if task.seconds > 0:
            yield Span(
                resource=task.resource,
                name=task.name,
                kind=task.kind,
                begin_s=played.begin_s[place],
                end_s=played.end_s[place],
                layer=task.layer,
            )
