"""Where operators do their native calls, so that a recording takes them down."""

from __future__ import annotations

from functools import partial
from time import perf_counter_ns
from typing import Protocol

from ktbench.engine.step.program import Call
from ktbench.engine.step.watch import Watch, Where


class Notes(Protocol):
    """What takes down calls that PyTorch does not see."""

    def note(self, call: Call, *memory: object) -> None:
        """A call that was made and is to be made again; `memory` is kept alive for it."""


class Tape:
    """One for all operators of an engine. `waited_ns` is how long the device role has waited for the host so far."""

    def __init__(self) -> None:
        self.watch = Watch()
        self.recorder: Notes | None = None
        self.waited_ns = 0

    def do(self, call: Call, *memory: object) -> None:
        """Make a call that PyTorch does not see, on `memory` that it needs."""
        call()
        if self.recorder is not None:
            self.recorder.note(call, *memory)

    def wait(self, call: Call, layer: int) -> None:
        """The same for a call that waits for the host."""
        self.watch.enter(Where("wait", layer))
        self.do(partial(self._timed, call))
        self.watch.leave()

    def _timed(self, call: Call) -> None:
        began = perf_counter_ns()
        call()
        self.waited_ns += perf_counter_ns() - began
