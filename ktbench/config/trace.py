"""Hands the trace of recorded routing to the cells that replay it, and to no others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ktbench.spec.sweep import axis_changes

_ROUTING, _TRACE = "workload.routing", "workload.trace"
Content = dict[str, Any]


def give_trace(parts: Mapping[str, Content]) -> dict[str, Content]:
    """Each part with its `workload.trace` where the routing is `recorded`, as such or as a value of an axis.

    Raises ValueError where a trace is named and no part replays one.
    """
    traces = {content["workload"]["trace"] for content in parts.values()} - {None}
    if traces and not any(_replays(content) for content in parts.values()):
        raise ValueError(f"workload.trace={traces.pop()}: set workload.routing=recorded with it")
    return {name: _given(content) for name, content in parts.items()}


def _given(content: Content) -> Content:
    work, axes = content["workload"], content["sweep"]["axes"]
    trace = work["trace"]
    if trace is None:
        return content
    if _routings(content):
        axes = axes | {_ROUTING: [_with_trace(value, trace) for value in axes[_ROUTING]]}
    base = trace if work["routing"] == "recorded" else None
    return content | {"workload": work | {"trace": base}, "sweep": content["sweep"] | {"axes": axes}}


def _with_trace(value: Any, trace: str) -> dict[str, Any]:
    changes = axis_changes(_ROUTING, value)
    return changes | {_TRACE: trace if changes.get(_ROUTING) == "recorded" else None}


def _replays(content: Content) -> bool:
    varied = (axis_changes(_ROUTING, value).get(_ROUTING) for value in _routings(content))
    return "recorded" in (content["workload"]["routing"], *varied)


def _routings(content: Content) -> list[Any]:
    axes = content["sweep"]["axes"]
    values = axes.get(_ROUTING, []) if isinstance(axes, dict) else []
    return values if isinstance(values, list) else []
