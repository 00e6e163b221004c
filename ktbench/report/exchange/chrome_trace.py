"""A timeline as a trace that Perfetto and Chrome open (Trace Event Format, Google 2016)."""

from __future__ import annotations

import json
from typing import Any

from ktbench.spec.timeline import Resource, Span, Timeline

_PROCESS = 1


def chrome_trace(timeline: Timeline) -> str:
    """JSON with a complete event for each span, in microseconds from the begin of the step, and a thread a resource."""
    threads = {resource: number for number, resource in enumerate(timeline.resources, start=1)}
    content = {
        "traceEvents": [
            _fact("process_name", 0, name=timeline.title),
            *(_fact("thread_name", thread, name=resource) for resource, thread in threads.items()),
            *(_fact("thread_sort_index", thread, sort_index=thread) for thread in threads.values()),
            *(_event(span, threads) for span in timeline.spans),
        ],
        "displayTimeUnit": "ms",
        "otherData": {"title": timeline.title, "provenance": timeline.provenance, "step_us": _us(timeline.step_s)},
    }
    return json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _fact(what: str, thread: int, **args: Any) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": _PROCESS, "tid": thread, "args": args}


def _event(span: Span, threads: dict[Resource, int]) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": span.name,
        "cat": span.kind,
        "pid": _PROCESS,
        "tid": threads[span.resource],
        "ts": _us(span.begin_s),
        "dur": _us(span.end_s - span.begin_s),
        "args": {} if span.layer is None else {"layer": span.layer},
    }


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 3)
