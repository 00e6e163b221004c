"""The routed experts of one MoE layer alone, with no model around them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ktbench.engine.copies import BindableBackend, Call, Copies, HeldLayer
from ktbench.engine.experts import Reference
from ktbench.engine.layer_script import LayerScript, LayerStep, write_layer_script
from ktbench.engine.observing import Observer
from ktbench.engine.protocol import Observation, Unsupported
from ktbench.engine.require import configured, require
from ktbench.engine.routing import Routing
from ktbench.engine.work import ExpertsWork, layer_work, mean_work
from ktbench.spec.engine import EngineSpec
from ktbench.spec.peers import PeerSpec
from ktbench.spec.record import Work
from ktbench.spec.run_spec import ModelSpec, RunSpec, WorkloadSpec
from ktbench.spec.timeline import Timeline


@dataclass(frozen=True, kw_only=True, slots=True)
class _Prepared:
    """A step with its experts settled, ready to run."""

    backend: BindableBackend
    hidden: Tensor
    routing: Routing
    call: Call


class LayerSystem:
    """Implements `ktbench.engine.protocol.System` for decoder layer `number`, whoever holds and runs it.

    Made by `ktbench.engine.load_layer.load_layer` and the peers that run layers.
    """

    def __init__(self, model: ModelSpec, number: int, held: HeldLayer) -> None:
        self.model, self._number, self._held = model, number, held
        self._copies: Copies | None = None
        self._scripts: dict[WorkloadSpec, LayerScript] = {}
        self._script: LayerScript | None = None
        self._warm: set[tuple[WorkloadSpec, EngineSpec, PeerSpec]] = set()
        self._notes: tuple[str, ...] = ()
        self._steps: list[_Prepared] = []
        self._output = torch.empty(0)
        self._reference: Reference | None = None
        self._observed: Observation | None = None
        self._done = self._observations = 0

    def configure(self, spec: RunSpec) -> None:
        """See `System`. Raises Unsupported, and ValueError for a model, layout, thread count or trace not to be had."""
        require(spec, self.model)
        if spec.workload not in self._scripts:
            self._scripts[spec.workload] = write_layer_script(spec.workload, self.model.shape)
        self._script = self._scripts[spec.workload]
        self._copies = self._held.choose(spec, self._endless_steps)
        self._notes = self._held.notes(spec)
        key = (spec.workload, spec.engine, spec.peer)
        if key not in self._warm:
            self._run_every_copy()
            self._warm.add(key)
        self.start()

    def _endless_steps(self, copies: Copies) -> Iterator[None]:
        self._copies = copies
        while True:
            self.start()
            for _ in self._steps:
                self.step()
                yield

    def _run_every_copy(self) -> None:
        """Operators make room for a workload in the first call of each copy, which no timed step should."""
        steps = self._endless_steps(self._copies_in_turn)
        for _ in range(self._copies_in_turn.count):
            next(steps)

    def start(self) -> None:
        """See `System`. Experts and copies go on where the steps before stopped: those are in the cache."""
        script = self._scripted
        script.output.fill_(torch.nan)
        self._steps = [self._prepare(step) for step in script.steps]
        self._done = 0

    def _prepare(self, step: LayerStep) -> _Prepared:
        backend, ids = self._copies_in_turn.take(step.ranks, step.active)
        routing = Routing(ids=torch.from_numpy(ids), gates=step.gates)
        call = backend.bind(step.hidden, routing, self._scripted.output)
        return _Prepared(backend=backend, hidden=step.hidden, routing=routing, call=call)

    def step(self) -> None:
        """See `System`. Raises IndexError past the last step of the workload."""
        self._output = self._steps[self._done].call()
        self._done += 1

    def logits(self) -> NDArray[np.float32]:
        """See `System`."""
        return self._output.float().numpy()

    def observe(self) -> tuple[Observation, ...]:
        """See `System`."""
        self._observations += 1  # other tokens each time
        last = self._steps[self._done - 1]
        self._scripted.output.fill_(torch.nan)
        self._output = last.call()
        observer = Observer(self._scripted.workload.seed, self._observations, most_experts=2 * self.model.shape.top_k)
        observer(self._number, last.hidden, last.routing, self._output)
        self._observed = observer.seen[0]
        self._reference = Reference(last.backend.matrices, torch.from_numpy(self._observed.hidden))
        return tuple(observer.seen)

    def reference(self, observation: Observation) -> NDArray[np.float32]:
        """See `System`. Raises ValueError for tokens that are not those of the last observation."""
        if self._reference is None or self._observed is None or observation.hidden is not self._observed.hidden:
            raise ValueError("a layer has a reference for the tokens of its last observation alone")
        routing = Routing(ids=torch.from_numpy(observation.ids), gates=torch.from_numpy(observation.gates))
        return self._reference(routing).numpy()

    def timeline(self) -> Timeline:
        """See `System`. Raises Unsupported: a layer alone has no device role."""
        raise Unsupported("workload.phase=layer has the routed experts alone: there is no second role to draw")

    def chosen(self) -> Mapping[str, int]:
        """See `System`."""
        return {}

    def notes(self) -> tuple[str, ...]:
        """See `System`."""
        return self._notes

    def counters(self) -> Mapping[str, int]:
        """See `System`."""
        return self._held.counters()

    def work(self) -> Work:
        """See `System`."""
        experts = ExpertsWork(shape=self.model.shape, precision=self._copies_in_turn.precision)
        return mean_work([layer_work(experts, step.ranked) for step in self._scripted.steps])

    def close(self) -> None:
        """See `System`."""
        self._scripts, self._script, self._steps = {}, None, []
        self._copies, self._reference = None, None
        self._held.close()

    @property
    def _copies_in_turn(self) -> Copies:
        return configured(self._copies)

    @property
    def _scripted(self) -> LayerScript:
        return configured(self._script)
