"""Timelines of a step from what both roles took down."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from ktbench.engine.step.watch import Segment
from ktbench.spec.timeline import Span, Timeline


def timeline(title: str, device: Sequence[Segment], host: NDArray[np.int64], *, on_time: bool = True) -> Timeline:
    """Spans of the device role's segments and of the host's jobs: rows of (layer, begin, end) in nanoseconds.

    `on_time` is whether a layer has experts that are not deferred.
    """
    began, ended = device[0].begin_ns, device[-1].end_ns
    spans = [*_device_spans(device, began), *_host_spans(host, (began, ended), on_time)]
    return Timeline(
        title=title, spans=tuple(sorted(spans, key=lambda span: span.begin_s)), step_s=(ended - began) / 1e9
    )


def _device_spans(segments: Iterable[Segment], began: int) -> Iterator[Span]:
    for segment in segments:
        where = segment.where
        yield Span(
            resource="device",
            name=where.kind,
            kind=where.kind,
            begin_s=(segment.begin_ns - began) / 1e9,
            end_s=(segment.end_ns - began) / 1e9,
            layer=where.layer,
        )


def _host_spans(jobs: NDArray[np.int64], step: tuple[int, int], on_time: bool) -> Iterator[Span]:
    """Of two jobs of one layer the second is what it deferred; the last layer defers nothing."""
    began, ended = step
    last = max((layer for layer, *_ in jobs.tolist()), default=-1)
    seen: set[int] = set() if on_time else set(range(last))
    for layer, begin, end in jobs.tolist():
        if layer < 0 or begin < began or end > ended:
            continue
        kind = "deferred" if layer in seen else "experts"
        seen.add(layer)
        yield Span(
            resource="host",
            name=f"{kind} of layer {layer}",
            kind=kind,
            begin_s=(begin - began) / 1e9,
            end_s=(end - began) / 1e9,
            layer=layer,
        )
