"""The hybrid engine under measurement: prepares a workload once and replays it to every feature setting."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from ktbench.core.engine import EngineSpec
from ktbench.core.record import Work
from ktbench.core.spec import ModelSpec, RunSpec, WorkloadSpec
from ktbench.engine.experts import Reference
from ktbench.engine.forward import CacheState, Forward
from ktbench.engine.observing import Observer
from ktbench.engine.operator import ExpertsOperator, Pass
from ktbench.engine.protocol import Observation
from ktbench.engine.require import require
from ktbench.engine.routing import Routing
from ktbench.engine.script import Script, ScriptWriter
from ktbench.engine.threads import use_threads
from ktbench.engine.work import DenseWork, ExpertsWork, dense_params, least_work, mean_work

if TYPE_CHECKING:
    from ktbench.engine.fused import FusedHost


class HybridEngine:
    """Implements `ktbench.engine.protocol.System`; made by `ktbench.engine.load.load`."""

    def __init__(
        self,
        model: ModelSpec,
        network: PreTrainedModel,
        operators: Sequence[ExpertsOperator],
        state: Pass,
        host: FusedHost | None,
        cores: int,
    ) -> None:
        self.model, self.cores = model, cores
        self._operators, self._state, self._host = operators, state, host
        self._forward = Forward(network)
        self._dense = dense_params(network)
        self._script: Script | None = None
        self._done = self._observed = 0
        self._before: CacheState = []
        self._logits = torch.empty(0)

    def configure(self, spec: RunSpec) -> None:
        """See `System`. Raises Unsupported, and ValueError for a model, layout or thread count that is not there."""
        require(spec, self.model)
        use_threads(spec.engine.threads, self.cores, self._host)
        if self._script is None or self._script.workload != spec.workload:
            # The routers are recorded with the original numerics where those weights are here.
            self._use(EngineSpec(v=self._operators[0].original is None))
            self._script = self._writer(spec.workload).write()
        if self._host is not None and spec.engine.fused:
            self._host.require(spec)
        self._use(spec.engine)
        self.start()

    def _writer(self, workload: WorkloadSpec) -> ScriptWriter:
        return ScriptWriter(workload=workload, shape=self.model.shape, forward=self._forward, state=self._state)

    def _use(self, engine: EngineSpec) -> None:
        state = self._state
        state.fused = engine.fused
        state.deferral, state.skipping = engine.deferral, engine.skipping
        _ = self._operators[0].backend  # refuses now what was not kept at load, not in the first step
        if self._host is not None and state.fused:
            self._host.choose(engine)

    def start(self) -> None:
        """See `System`."""
        self._done, self._before = 0, self._scripted.prompt_cache
        self._forward.restore(self._before)

    def step(self) -> None:
        """See `System`. Raises ValueError past the last step of the workload."""
        script = self._scripted
        if self._done == len(script.ids):
            raise ValueError(f"workload.steps={self._done}: all were done, start again")
        self._state.replay, self._state.carried = script.routing[self._done], None
        if script.workload.phase == "prefill":
            self._logits = self._forward.whole(script.ids[self._done])
        else:
            self._before = self._forward.remember()
            self._logits = self._forward.onward(script.ids[self._done])
        self._done += 1

    def logits(self) -> NDArray[np.float32]:
        """See `System`."""
        return self._logits.float().numpy()

    def observe(self) -> tuple[Observation, ...]:
        """See `System`."""
        self._observed += 1  # other tokens each time
        observer = Observer(self._scripted.workload.seed, self._observed)
        self._forward.restore(self._before)
        self._done -= 1
        self._state.tap = observer
        try:
            self.step()
        finally:
            self._state.tap = None
        return tuple(observer.seen)

    def reference(self, observation: Observation) -> NDArray[np.float32]:
        """See `System`."""
        operator = next(o for o in self._operators if o.place.layer == observation.layer)
        routing = Routing(ids=torch.from_numpy(observation.ids), gates=torch.from_numpy(observation.gates))
        return Reference(operator.backend.matrices, torch.from_numpy(observation.hidden))(routing).numpy()

    def counters(self) -> Mapping[str, int]:
        """See `System`."""
        kernels = Counter[str]() if self._host is None else self._host.counters()
        return kernels | self._state.counted

    def work(self) -> Work:
        """See `System`."""
        script, state = self._scripted, self._state
        precision = self._host.packing.precision if self._host is not None and state.fused else "bf16"
        dense = DenseWork(params=self._dense, batch=script.workload.batch)
        experts = ExpertsWork(shape=self.model.shape, precision=precision, skipping=state.skipping)
        return mean_work([least_work(dense, experts, routing) for routing in script.routing])

    def close(self) -> None:
        """See `System`."""
        self._operators, self._host, self._script = (), None, None
        del self._forward

    @property
    def _scripted(self) -> Script:
        if self._script is None:
            raise ValueError("configure comes before every other call")
        return self._script
