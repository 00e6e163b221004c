"""Replays the trace of a workload: what systems under test have in common that run a network through PyTorch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from ktbench.engine.decode.step import Forward, StepRunner
from ktbench.engine.decode.timeline import Segment
from ktbench.engine.experts import Tap
from ktbench.engine.forms import ExpertStore
from ktbench.engine.observe import ExpertsReference, Observer
from ktbench.engine.protocol import ExpertsObservation, configured
from ktbench.engine.workload_trace import TraceCache, WorkloadTrace
from ktbench.spec.run_spec import ModelSpec


class TraceReplay:
    """Feeds the steps of a trace to a runner; `done` were run since `start`, `logits` [B, vocab] are the last one's."""

    def __init__(self, trace: WorkloadTrace, runner: StepRunner) -> None:
        self.trace, self.runner, self.done = trace, runner, 0
        self.logits = torch.empty(0)

    def start(self) -> None:
        """Back to the state before step 0."""
        self.done = 0
        self.runner.begin(self.trace.start)

    def step(self) -> None:
        """The next step: what is timed. Raises ValueError past the last step of the workload."""
        number = self.done
        if number == len(self.trace.ids):
            raise ValueError(f"workload.steps={number}: all were done, start again")
        self.logits = self.runner.step(self.trace.ids[number], self.trace.routing[number])
        self.done += 1

    def repeat(self, during: AbstractContextManager[object]) -> None:
        """The last step once more, through the modelling code and inside `during`."""
        number = self._rewind()
        with during:
            self.logits = self.runner.run_model(self.trace.ids[number], self.trace.routing[number])

    def profile(self) -> list[Segment]:
        """The last step once more, with the times of what the device role does."""
        number = self._rewind()
        return self.runner.profile(self.trace.ids[number], self.trace.routing[number])

    def _rewind(self) -> int:
        """Back to the state before the last step, whose number is returned.

        Where it cannot be undone, the steps before it are repeated.
        """
        number = self.done - 1
        if not self.runner.undo(self.trace.ids[number].shape[1]):
            self.runner.begin(self.trace.start)
            for earlier in range(number):
                self.runner.step(self.trace.ids[earlier], self.trace.routing[earlier])
        return number


class ReplaySystem(ABC):
    """Base of implementations of `ktbench.engine.protocol.System` that replay traces; `configure` sets the replay."""

    def __init__(self, model: ModelSpec, network: PreTrainedModel) -> None:
        self.model, self._forward = model, Forward(network)
        self._traces = TraceCache()
        self._trace: WorkloadTrace | None = None
        self._replay: TraceReplay | None = None
        self._notes: list[str] = []
        self._observed = 0

    @abstractmethod
    def _tapped(self, tap: Tap) -> AbstractContextManager[None]:
        """Inside, `tap` sees every call of routed experts."""

    @abstractmethod
    def _experts_of(self, layer: int) -> ExpertStore:
        """The matrices of the experts of decoder layer `layer`, as they are stored."""

    def start(self) -> None:
        """See `System`."""
        self._replayed.start()

    def step(self) -> None:
        """See `System`. Raises ValueError past the last step of the workload."""
        self._replayed.step()

    def logits(self) -> NDArray[np.float32]:
        """See `System`."""
        return self._replayed.logits.float().numpy(force=True)

    def observe(self) -> tuple[ExpertsObservation, ...]:
        """See `System`."""
        self._observed += 1  # other tokens each time
        observer = Observer(self._traced.workload.seed, self._observed)
        self._replayed.repeat(self._tapped(observer))
        return tuple(observer.seen)

    def reference(self, observation: ExpertsObservation) -> NDArray[np.float32]:
        """See `System`."""
        hidden = torch.from_numpy(observation.hidden)
        return ExpertsReference(self._experts_of(observation.layer), hidden).of(observation)

    def notes(self) -> tuple[str, ...]:
        """See `System`."""
        return tuple(self._notes)

    def close(self) -> None:
        """See `System`."""
        del self._forward
        self._trace = self._replay = None
        self._traces = TraceCache()

    @property
    def _traced(self) -> WorkloadTrace:
        return configured(self._trace)

    @property
    def _replayed(self) -> TraceReplay:
        return configured(self._replay)
