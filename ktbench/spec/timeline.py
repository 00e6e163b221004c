"""What each role did during one step, span by span."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

from ktbench.spec.record import Provenance

Resource = Literal["host", "device", "link", "launch"]
RESOURCES: tuple[Resource, ...] = get_args(Resource)
WAIT = "wait"
GRAPH = "graph"


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """Work `name` on a resource from `begin_s` to `end_s`, in seconds from the begin of the step.

    `layer` counts decoder layers from 0, None for what belongs to none. `kind` groups spans of one colour: experts,
    deferred, attention, shared, wait, graph, other. What a resource does inside a graph is not seen.
    """

    resource: Resource
    name: str
    kind: str
    begin_s: float
    end_s: float
    layer: int | None = None

    def __post_init__(self) -> None:
        if self.end_s < self.begin_s:
            raise ValueError(f"span {self.name}: ends at {self.end_s} s, before it begins at {self.begin_s} s")


@dataclass(frozen=True, kw_only=True, slots=True)
class Timeline:
    """The spans of one step that took `step_s` seconds, in order of their begin."""

    title: str
    spans: tuple[Span, ...]
    step_s: float
    provenance: Provenance = "measured"

    @property
    def resources(self) -> tuple[Resource, ...]:
        """Those that did anything."""
        return tuple(resource for resource in RESOURCES if any(span.resource == resource for span in self.spans))

    def busy_s(self, resource: Resource) -> float:
        """Seconds in which a resource worked; what it did at the same time counts once."""
        return _length(self._work(resource))

    def is_unseen(self, resource: Resource) -> bool:
        """Whether a resource replayed a graph, in which no clock can be read: it may have worked or waited."""
        return any(span.resource == resource and span.kind == GRAPH for span in self.spans)

    def waiting_s(self, resource: Resource) -> float:
        """Seconds in which a resource had nothing to do but wait, as its spans of kind `wait` say."""
        return _length((s.begin_s, s.end_s) for s in self.spans if s.resource == resource and s.kind == WAIT)

    def overlap_s(self, one: Resource, other: Resource) -> float:
        """Seconds in which both worked."""
        both = _length([*self._work(one), *self._work(other)])
        return self.busy_s(one) + self.busy_s(other) - both

    def _work(self, resource: Resource) -> list[tuple[float, float]]:
        return [(s.begin_s, s.end_s) for s in self.spans if s.resource == resource and s.kind != WAIT]


def _length(intervals: Iterable[tuple[float, float]]) -> float:
    """Length of the union of intervals."""
    total, reached = 0.0, float("-inf")
    for begin, end in sorted(intervals):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total
