"""The routed experts of one MoE layer alone, with no model around them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ktbench.core.engine import EngineSpec
from ktbench.core.record import Work
from ktbench.core.spec import ModelSpec, RunSpec, WorkloadSpec
from ktbench.core.timeline import Timeline
from ktbench.engine.copies import BindableBackend, Call, Copies
from ktbench.engine.experts import Reference
from ktbench.engine.layer_script import LayerScript, LayerStep, write_layer_script
from ktbench.engine.observing import Observer
from ktbench.engine.protocol import Observation, Unsupported
from ktbench.engine.require import require
from ktbench.engine.routing import Routing
from ktbench.engine.threads import Threads
from ktbench.engine.work import ExpertsWork, layer_work, mean_work

if TYPE_CHECKING:
    from ktbench.engine.fused import FusedHost


@dataclass(frozen=True, kw_only=True, slots=True)
class Layer:
    """One MoE layer in memory: decoder layer `number`, its copies as Transformers holds them and packed."""

    number: int
    original: Copies | None
    packed: Copies | None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Prepared:
    """A step with its experts settled, ready to run."""

    backend: BindableBackend
    hidden: Tensor
    routing: Routing
    call: Call


class LayerSystem:
    """Implements `ktbench.engine.protocol.System`; made by `ktbench.engine.load_layer.load_layer`."""

    def __init__(self, model: ModelSpec, layer: Layer, host: FusedHost | None, threads: Threads) -> None:
        self.model, self._threads = model, threads
        self._layer, self._host = layer, host
        self._copies: Copies | None = None
        self._scripts: dict[WorkloadSpec, LayerScript] = {}
        self._script: LayerScript | None = None
        self._warm: set[tuple[WorkloadSpec, EngineSpec]] = set()
        self._experts = ExpertsWork(shape=model.shape, precision="bf16")
        self._steps: list[_Prepared] = []
        self._output = torch.empty(0)
        self._reference: Reference | None = None
        self._observed: Observation | None = None
        self._done = self._observations = 0

    def configure(self, spec: RunSpec) -> None:
        """See `System`. Raises Unsupported, and ValueError for a model, layout, thread count or trace not to be had."""
        require(spec, self.model)
        self._threads.use(spec.engine, self._host, None)
        self._use(spec)
        if spec.workload not in self._scripts:
            self._scripts[spec.workload] = write_layer_script(spec.workload, self.model.shape)
        self._script = self._scripts[spec.workload]
        if (spec.workload, spec.engine) not in self._warm:
            self._run_every_copy()
            self._warm.add((spec.workload, spec.engine))
        self.start()

    def _run_every_copy(self) -> None:
        """The fused operator of each copy makes room for a workload in its first call, which no timed step should."""
        steps = len(self._scripted.steps)
        for done in range(self._copies_in_turn.count):
            if done % steps == 0:
                self.start()
            self.step()

    def _use(self, spec: RunSpec) -> None:
        fused = spec.engine.fused
        self._copies = self._layer.packed if fused else self._layer.original
        if self._copies is None:
            raise ValueError(f"{'packed' if fused else 'original'} expert weights were not kept at load")
        if fused and self._host is not None:
            self._host.require(spec)
            self._host.choose(spec.engine)
        self._experts = ExpertsWork(shape=self.model.shape, precision=spec.precision if fused else "bf16")

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
        observer(self._layer.number, last.hidden, last.routing, self._output)
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
        return ()

    def counters(self) -> Mapping[str, int]:
        """See `System`."""
        return Counter[str]() if self._host is None else self._host.counters()

    def work(self) -> Work:
        """See `System`."""
        return mean_work([layer_work(self._experts, step.ranked) for step in self._scripted.steps])

    def close(self) -> None:
        """See `System`."""
        self._scripts, self._script, self._steps = {}, None, []
        self._copies, self._host, self._reference = None, None, None
        self._layer = Layer(number=self._layer.number, original=None, packed=None)

    @property
    def _copies_in_turn(self) -> Copies:
        if self._copies is None:
            raise ValueError("configure comes before every other call")
        return self._copies

    @property
    def _scripted(self) -> LayerScript:
        if self._script is None:
            raise ValueError("configure comes before every other call")
        return self._script
