"""Replays the trace of a workload: what systems under test have in common that run a network through PyTorch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from ktbench.engine.backend import Tap
from ktbench.engine.decode.step import DecodeRunner, Forward
from ktbench.engine.decode.timeline import Segment
from ktbench.engine.forms import ExpertFunctions
from ktbench.engine.observe import KeptOutputs, Observer, truth_of
from ktbench.engine.protocol import ExpertsObservation, Inspected, Survey, Surveyed, configured
from ktbench.engine.routing import Routing
from ktbench.engine.survey import ExpertsSurvey
from ktbench.engine.workload_trace import TraceCache, WorkloadTrace, step_ids
from ktbench.spec.run_spec import ModelSpec


class TraceReplay:
    """Feeds the steps of a trace to a runner; `done` were run since `start`, `logits` [B, vocab] are the last one's.

    `ids` are those of the trace until they are renewed; the routing of every step stays.
    """

    def __init__(self, trace: WorkloadTrace, runner: DecodeRunner) -> None:
        self.trace, self.runner, self.done = trace, runner, 0
        self.ids: Sequence[Tensor] = trace.ids
        self.logits = torch.empty(0)

    def start(self) -> None:
        """Back to the state before step 0."""
        self.done = 0
        self.runner.begin(self.trace.start)

    def step(self) -> None:
        """The next step: what is timed. Raises ValueError past the last step of the workload."""
        number = self.done
        if number == len(self.ids):
            raise ValueError(f"workload.steps={number}: all were done, start again")
        self.logits = self.runner.step(self.ids[number], self.trace.routing[number])
        self.done += 1

    def repeat(self, during: AbstractContextManager[object], step: int | None = None) -> None:
        """A step (None: the last) once more, through the modelling code and inside `during`; it is the last then."""
        number = self._rewind(step)
        with during:
            self.logits = self.runner.run_model(self.ids[number], self.trace.routing[number])

    def profile(self) -> list[Segment]:
        """The last step once more, with the times of what the device role does."""
        number = self._rewind()
        return self.runner.profile(self.ids[number], self.trace.routing[number])

    def _rewind(self, step: int | None = None) -> int:
        """Back to the state before a step (None: the last), whose number is returned.

        Where the steps since then cannot be undone, those before it are repeated.
        """
        number = self.done - 1 if step is None else step
        if not self.runner.undo(sum(one.shape[1] for one in self.ids[number : self.done])):
            self.runner.begin(self.trace.start)
            for earlier in range(number):
                self.runner.step(self.ids[earlier], self.trace.routing[earlier])
        self.done = number + 1
        return number


class ReplaySystem(ABC, Inspected):
    """Base of implementations of `ktbench.engine.protocol.System` that replay traces; `configure` sets the replay."""

    def __init__(self, model: ModelSpec, network: PreTrainedModel) -> None:
        self.model, self._forward = model, Forward(network)
        self._traces = TraceCache()
        self._trace: WorkloadTrace | None = None
        self._replay: TraceReplay | None = None
        self._notes: list[str] = []
        self._observed = 0
        self._copies = KeptOutputs()
        self._surveys: dict[int, ExpertsSurvey] = {}
        self._survey: ExpertsSurvey | None = None

    @abstractmethod
    def _tapped(self, tap: Tap) -> AbstractContextManager[None]:
        """Inside, `tap` sees every call of routed experts."""

    @abstractmethod
    def _experts_of(self, layer: int) -> ExpertFunctions:
        """The experts of decoder layer `layer` in float32 arithmetic, of the weights as they are stored."""

    @abstractmethod
    def _moe_layers(self) -> tuple[int, ...]:
        """The decoder layers that have routed experts."""

    @abstractmethod
    def _run_experts(self, layer: int, hidden: Tensor, routing: Routing) -> Tensor:
        """The routed experts [T, H] of decoder layer `layer` for `hidden` [T, H], which is memory of the host."""

    def start(self) -> None:
        self._copies.clear()
        self._replayed.start()

    def renew(self, number: int | None) -> None:
        ids = self._traced.ids
        if number is not None:
            ids = step_ids(self._traced.workload, self.model.shape.vocab, number)
        self._replayed.ids = [one.to(self._forward.network.device) for one in ids]

    def step(self) -> None:
        """See `System`. Raises ValueError past the last step of the workload."""
        self._replayed.step()

    def logits(self) -> NDArray[np.float32]:
        return self._replayed.logits.float().numpy(force=True)

    def keep(self) -> None:
        self._copies.take(self._replayed.done - 1, self._replayed.logits)

    def kept(self, step: int) -> NDArray[np.float32]:
        return configured(self._copies.of(step)).float().numpy()

    def observe(self, step: int | None = None, seed: int | None = None) -> tuple[ExpertsObservation, ...]:
        self._observed += 1  # other tokens each time
        observer = Observer(self._traced.workload.seed, self._observed if seed is None else seed)
        self._replayed.repeat(self._tapped(observer), step)
        return tuple(observer.seen)

    def survey(self, seed: int, most: int) -> Survey:
        """See `Inspected`: in decode a call has a token of every sequence, in prefill those of a chunk of prompts."""
        tokens = self._traced.routing[0][0].ids.shape[1]
        known = self._surveys.get(tokens)
        if known is None or not known.is_for(tokens, seed):
            known = ExpertsSurvey(self.model.shape, len(self._moe_layers()), tokens, seed, most)
            self._surveys[tokens] = known
        self._survey = known
        return known.plan

    @torch.inference_mode()
    def meet(self, unit: tuple[int, int]) -> Surveyed:
        layer = self._moe_layers()[unit[0]]

        def run(hidden: Tensor, routing: Routing) -> Tensor:
            return self._run_experts(layer, hidden, routing)

        return configured(self._survey).meet(unit, layer, run, self._experts_of(layer))

    def reference(self, observation: ExpertsObservation) -> NDArray[np.float32]:
        return truth_of(self._experts_of(observation.layer), observation)

    def notes(self) -> tuple[str, ...]:
        return tuple(self._notes)

    def close(self) -> None:
        del self._forward
        self._trace = self._replay = None
        self._traces = TraceCache()

    @property
    def _traced(self) -> WorkloadTrace:
        return configured(self._trace)

    @property
    def _replayed(self) -> TraceReplay:
        return configured(self._replay)
