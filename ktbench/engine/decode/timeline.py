"""Follows the modules of a network while they run, and makes timelines of a step from what both roles recorded."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from time import perf_counter_ns
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch import nn

from ktbench.spec.timeline import Span, Timeline

# Kind of a module by its dotted name; the first that matches, of modules inside one another the innermost.
_KINDS = (
    (re.compile(r".*\.(self_attn|linear_attn|attention)"), "attention"),
    (re.compile(r".*\.experts"), "submit"),
    (re.compile(r".*\.(gate|router)"), "router"),
    (re.compile(r".*\.(mlp|feed_forward|block_sparse_moe)"), "mlp"),
    (re.compile(r".*norm"), "norm"),
    (re.compile(r"lm_head"), "head"),
)
_LAYER = re.compile(r".*\blayers\.(\d+)\b")


def layer_of(name: str) -> int | None:
    """The decoder layer that a module of this dotted name is in."""
    found = _LAYER.match(name)
    return int(found[1]) if found else None


@dataclass(frozen=True, slots=True)
class Where:
    """A kind of work and the decoder layer that it belongs to."""

    kind: str
    layer: int | None = None


@dataclass(frozen=True, slots=True)
class Segment:
    """Time spent somewhere, in nanoseconds of `time.perf_counter_ns`."""

    where: Where
    begin_ns: int
    end_ns: int


_OUTSIDE = Where("other")


class ModuleWatch:
    """Follows the modules of a network while they run.

    `clock` gives nanoseconds of `time.perf_counter_ns`; a device that works on its own is finished with first.
    """

    def __init__(self) -> None:
        self._stack: list[Where] = []
        self._segments: list[Segment] = []
        self._since = 0
        self._on = False
        self.clock: Callable[[], int] = perf_counter_ns

    @property
    def here(self) -> Where:
        """What runs now."""
        return self._stack[-1] if self._stack else _OUTSIDE

    @contextmanager
    def on(self, network: nn.Module) -> Iterator[list[Segment]]:
        """Inside, times are recorded; the list is complete at the end."""
        handles = [handle for name, module in network.named_modules() for handle in self._hooks(name, module)]
        self._segments, self._since, self._on = [], self.clock(), True
        depth = len(self._stack)
        try:
            yield self._segments
        finally:
            self._mark()
            self._on = False
            del self._stack[depth:]  # entries that an exception has skipped
            for handle in handles:
                handle.remove()

    def enter(self, where: Where) -> None:
        """From now on."""
        self._mark()
        self._stack.append(where)

    def leave(self) -> None:
        """Back to what it was inside of."""
        self._mark()
        self._stack.pop()

    def _hooks(self, name: str, module: nn.Module) -> Iterator[Any]:
        kind = next((kind for pattern, kind in _KINDS if pattern.fullmatch(name)), None)
        if kind is None:
            return
        where = Where(kind, layer_of(name))
        yield module.register_forward_pre_hook(lambda *_: self.enter(where))
        yield module.register_forward_hook(lambda *_: self.leave())

    def _mark(self) -> None:
        if not self._on:
            return
        now = self.clock()
        if now > self._since:
            self._segments.append(Segment(self.here, self._since, now))
        self._since = now


def merge_segments(segments: list[Segment]) -> list[Segment]:
    """Neighbours that are the same work become one."""
    runs = [list(run) for _, run in groupby(segments, key=lambda segment: segment.where)]
    return [Segment(run[0].where, run[0].begin_ns, run[-1].end_ns) for run in runs]


def timed(calls: Iterable[tuple[Callable[[], object], Where]]) -> list[Segment]:
    """Make calls one after the other and take their times."""
    segments = []
    for call, where in calls:
        began = perf_counter_ns()
        call()
        segments.append(Segment(where, began, perf_counter_ns()))
    return merge_segments(segments)


def timeline(title: str, device: Sequence[Segment], host: NDArray[np.int64], *, on_time: bool = True) -> Timeline:
    """Spans of the device role's segments and of the host's jobs: rows of (layer, begin, end) in nanoseconds.

    `on_time` is whether a layer has experts that are not deferred.
    """
    began, ended = device[0].begin_ns, device[-1].end_ns

    def span(resource: Literal["device", "host"], name: str, one: Segment) -> Span:
        begin_s, end_s = (one.begin_ns - began) / 1e9, (one.end_ns - began) / 1e9
        kind, layer = one.where.kind, one.where.layer
        return Span(resource=resource, name=name, kind=kind, begin_s=begin_s, end_s=end_s, layer=layer)

    spans = [span("device", one.where.kind, one) for one in device]
    jobs = _host_jobs(host, (began, ended), on_time)
    spans += [span("host", f"{job.where.kind} of layer {job.where.layer}", job) for job in jobs]
    spans.sort(key=lambda one: one.begin_s)
    return Timeline(title=title, spans=tuple(spans), step_s=(ended - began) / 1e9)


def _host_jobs(jobs: NDArray[np.int64], step: tuple[int, int], on_time: bool) -> Iterator[Segment]:
    """Of two jobs of one layer in a pass the second is what it deferred; the last layer defers nothing."""
    began, ended = step
    last = max((layer for layer, *_ in jobs.tolist()), default=-1)
    before, is_second = -1, False
    for layer, begin, end in jobs.tolist():
        if layer >= 0 and began <= begin and end <= ended:
            is_second = layer == before and not is_second
            is_late = layer < last and (is_second or not on_time)
            yield Segment(Where("deferred" if is_late else "experts", layer), begin, end)
            before = layer
