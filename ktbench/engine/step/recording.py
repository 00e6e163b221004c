"""How a step is taken down and done again: call by call here, or as one CUDA graph (`ktbench.engine.cuda.graph`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from torch import Tensor, nn

from ktbench.engine.step.program import Lowering, Program, Recorder
from ktbench.engine.step.tape import Tape
from ktbench.engine.step.watch import Segment, Watch


class Recording(Protocol):
    """One step, recorded once and again where it changes; `watch` follows the modules that run."""

    watch: Watch

    def record(self, run: Callable[[], Tensor]) -> Tensor:
        """Take down what `run` does, maybe several times; gives its result, which every replay writes anew.

        Raises NotRecordable with the reason.
        """

    def replay(self) -> None:
        """Do the step once more on whatever its inputs hold now."""

    def replay_timed(self) -> list[Segment]:
        """The same, with the times of its parts as far as they are known."""


class ProgramRecording:
    """Steps of a device role on CPU cores."""

    def __init__(self, network: nn.Module, tape: Tape, lower: Lowering | None) -> None:
        self._network, self._tape, self._lower, self.watch = network, tape, lower, tape.watch
        self.program = Program([], [], [])

    def record(self, run: Callable[[], Tensor]) -> Tensor:
        """See `Recording`."""
        constants = [*self._network.parameters(), *self._network.buffers()]
        recorder = self._tape.recorder = Recorder(self.watch, constants, self._lower)
        try:
            with self.watch.on(self._network), recorder:
                result = run()
        finally:
            self._tape.recorder = None
        self.program = recorder.program()
        return result

    def replay(self) -> None:
        """See `Recording`."""
        self.program.replay()

    def replay_timed(self) -> list[Segment]:
        """See `Recording`."""
        return self.program.replay_timed()
