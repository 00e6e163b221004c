"""What the device role is at, for timelines: the module that runs now, and spans of time by module."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any

from torch import nn

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


class Watch:
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
        """Inside, time is taken down; the list is complete at the end."""
        handles = [handle for name, module in network.named_modules() for handle in self._hooks(name, module)]
        self._segments, self._since, self._on = [], self.clock(), True
        depth = len(self._stack)
        try:
            yield self._segments
        finally:
            self._mark()
            self._on = False
            del self._stack[depth:]  # what an exception has left without a word
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


def joined(segments: list[Segment]) -> list[Segment]:
    """Neighbours that are the same work become one."""
    merged: list[Segment] = []
    for segment in segments:
        if merged and merged[-1].where == segment.where:
            merged[-1] = Segment(segment.where, merged[-1].begin_ns, segment.end_ns)
        else:
            merged.append(segment)
    return merged


def timed(calls: list[tuple[Callable[[], object], Where]]) -> list[Segment]:
    """Make calls one after the other and take their times."""
    segments = []
    for call, where in calls:
        began = perf_counter_ns()
        call()
        segments.append(Segment(where, began, perf_counter_ns()))
    return joined(segments)
