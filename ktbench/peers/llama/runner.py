"""A workload in one of llama.cpp's contexts: its prompt in the memory, its steps ready to be repeated."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ktbench.engine.protocol import Unsupported
from ktbench.peers.llama.api import Batch, Model, Room
from ktbench.peers.llama.library import Library
from ktbench.peers.llama.script import Layout, Script
from ktbench.peers.llama.settings import Settings


class Calls:
    """A script with its batches prepared, for every context that runs it."""

    def __init__(self, library: Library, script: Script) -> None:
        self.script = script
        self.prompt = _batches(library, script.prompt)
        self.steps = tuple(_batches(library, calls) for calls in script.steps)


def _batches(library: Library, calls: tuple[Layout, ...]) -> tuple[Batch, ...]:
    return tuple(Batch(library, layout) for layout in calls)


class Runner:
    """Opens a context and runs the prompt of a decode workload through it. Raises as `Model.open` and `Context`."""

    def __init__(self, model: Model, calls: Calls, settings: Settings) -> None:
        script = calls.script
        self.cells = script.cells
        self._calls, self._prompt = calls, script.workload.prompt if script.prompt else 0
        self._context = model.open(room(script, model.vocab), settings)
        self.done = 0
        for batch in calls.prompt:
            self._context.decode(batch)
        self._context.finish()

    def use(self, threads: int) -> None:
        """From now on steps run on so many threads."""
        self._context.use(threads)

    def start(self) -> None:
        """Back to step 0: decode has the prompt in its memory and nothing after it.

        Raises Unsupported for a model whose memory cannot go back, such as a recurrent state.
        """
        if not self._context.keep(self._prompt):
            raise Unsupported("llama.cpp cannot take this model's memory back to where its prompt ended")
        self._context.restart_clock()
        self.done = 0

    def step(self) -> None:
        """The calls of the next step, and the wait for them. A prefill begins with an empty memory.

        Raises ValueError past the last step of the workload.
        """
        if self.done == len(self._calls.steps):
            raise ValueError(f"workload.steps={self.done}: all were done, start again")
        if not self._prompt:
            self._context.forget()
        for batch in self._calls.steps[self.done]:
            self._context.decode(batch)
        self._context.finish()
        self.done += 1

    def logits(self) -> NDArray[np.float32]:
        """[batch, vocab] at the last position of the last step."""
        return self._context.logits()

    @property
    def own_step_s(self) -> float:
        """Mean seconds of the steps since `start` by llama.cpp's own clock."""
        return self._context.own_s / self.done

    def close(self) -> None:
        """Release the context."""
        self._context.close()


def room(script: Script, vocab: int) -> Room:
    """What a context needs for a script."""
    return Room(cells=script.cells, call_tokens=script.call_tokens, sequences=script.workload.batch, vocab=vocab)


class Trials:
    """Implements `ktbench.peers.llama.tuning.Bench`: at most two contexts are open at a time.

    `runner` is the one that was prepared last.
    """

    def __init__(self, model: Model, calls: Calls) -> None:
        self._model, self._calls = model, calls
        self._runners: dict[tuple[int, bool], Runner] = {}

    def prepare(self, settings: Settings) -> None:
        """See `Bench`."""
        if settings.needs_context not in self._runners:
            self._runners[settings.needs_context] = Runner(self._model, self._calls, settings)
        self.runner = self._runners[settings.needs_context]
        self.runner.use(settings.threads)
        self.runner.start()

    def step(self) -> None:
        """See `Bench`."""
        if self.runner.done == len(self._calls.steps):
            self.runner.start()
        self.runner.step()

    def keep(self, settings: Settings) -> None:
        """See `Bench`."""
        self._close_all_but(settings.needs_context)

    def close(self) -> None:
        """Let go of everything."""
        self._close_all_but(None)

    def _close_all_but(self, kept: tuple[int, bool] | None) -> None:
        for other in [key for key in self._runners if key != kept]:
            self._runners.pop(other).close()
