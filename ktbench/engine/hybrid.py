"""The hybrid engine under measurement: prepares a workload once and replays it to every feature setting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter_ns
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from ktbench.core.engine import EngineSpec
from ktbench.core.record import Work
from ktbench.core.spec import ModelSpec, RunSpec
from ktbench.core.timeline import Timeline
from ktbench.engine.choosing import LEAST_ON_TIME, choose_deferral, told
from ktbench.engine.experts import Reference
from ktbench.engine.forward import Forward
from ktbench.engine.observing import Observer
from ktbench.engine.operator import ExpertsOperator, Pass
from ktbench.engine.protocol import Observation
from ktbench.engine.require import require
from ktbench.engine.resident import Home, Residents, SameMemory, leave
from ktbench.engine.routing import PassRouting, Routing
from ktbench.engine.script import Script, ScriptWriter
from ktbench.engine.step.decoding import LeanDecoding
from ktbench.engine.step.recording import ProgramRecording, Recording
from ktbench.engine.stepping import LeanSteps, PassSteps, Steps
from ktbench.engine.threads import Threads
from ktbench.engine.timelines import timeline
from ktbench.engine.work import DenseWork, ExpertsWork, mean_work, step_work

if TYPE_CHECKING:
    from ktbench.engine.cuda.role import CudaRole
    from ktbench.engine.dense import DenseHost
    from ktbench.engine.fused import FusedHost
    from ktbench.engine.step.decoding import StepAttending

_TRIED_STEPS = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """What an engine is made of: the network with its operators in place, and who runs them.

    `host` has the packed experts, `device` the packed linear layers, `attention` that of recorded steps; `cuda` is
    there where the device role is a CUDA device.
    `dense_params` counts the weights that every token meets.
    """

    network: PreTrainedModel
    operators: Sequence[ExpertsOperator]
    state: Pass
    host: FusedHost | None
    device: DenseHost | None
    attention: StepAttending | None
    cuda: CudaRole | None
    threads: Threads
    dense_params: int


class HybridEngine:
    """Implements `ktbench.engine.protocol.System`; made by `ktbench.engine.load.load`."""

    def __init__(self, model: ModelSpec, parts: Parts) -> None:
        self.model, self._parts = model, parts
        self._forward = Forward(parts.network)
        self._script: Script | None = None
        self._steps: Steps | None = None
        self._engine = EngineSpec()
        self._notes: list[str] = []
        self._residents: Residents | None = None
        self._done = self._observed = self._recorded_steps = 0
        self._logits = torch.empty(0)

    def configure(self, spec: RunSpec) -> None:
        """See `System`. Raises Unsupported, and ValueError for a model, layout or thread count that is not there."""
        parts = self._parts
        require(spec, self.model)
        parts.threads.use(spec.engine, parts.host, parts.device)
        if self._script is None or self._script.workload != spec.workload:
            self._script = self._write(spec)
        if parts.host is not None and spec.engine.fused:
            parts.host.require(spec)
        self._notes = []
        deferral = spec.engine.deferral
        self._set_up(spec.engine, self._chosen_deferral(spec.engine) if deferral == "auto" else deferral)

    def _write(self, spec: RunSpec) -> Script:
        """The routers are recorded with the original numerics where those weights are here."""
        parts = self._parts
        kept = parts.operators[0].original is not None
        lean = parts.device is not None and not parts.device.keeps_original
        self._use(EngineSpec(v=not kept or lean, l=lean), 0)
        return ScriptWriter(
            workload=spec.workload, shape=self.model.shape, forward=self._forward, state=parts.state
        ).write()

    def _set_up(self, engine: EngineSpec, deferral: int) -> None:
        self._use(engine, deferral)
        self._settle(engine)
        self._steps = self._lean_steps(engine) if engine.l or engine.c else None
        if self._steps is None:
            self._steps = PassSteps(self._forward, self._parts.state, self._scripted)
        self.start()

    def _use(self, engine: EngineSpec, deferral: int) -> None:
        """From now on the experts run as `engine` says, and every layer defers so many of them."""
        parts, state = self._parts, self._parts.state
        self._engine = engine
        acts = engine.defer_prefill or self._script is None or self._scripted.workload.phase == "decode"
        state.fused, state.apart = engine.fused, engine.fused and parts.host is not None and parts.host.apart
        state.deferral, state.skipping = (deferral, engine.skipping) if acts else (0, 0)
        _ = parts.operators[0].backend  # refuses now what was not kept at load, not in the first step
        if parts.host is not None and state.fused:
            parts.host.choose(engine)
        if parts.device is not None:
            parts.device.lean = engine.l

    def _settle(self, engine: EngineSpec) -> None:
        """Puts experts where the placement says."""
        parts = self._parts
        leave(parts.operators)
        self._residents = None
        if engine.placement.policy == "host" or parts.host is None:
            return
        device = torch.device("cpu") if parts.cuda is None else parts.cuda.device
        self._residents = Residents(engine.placement, self.model, parts.operators, self._home, device)
        parts.host.choose(engine)

    def _home(self, operator: ExpertsOperator, at_device: NDArray[np.bool_]) -> Home:
        """Who runs a layer's experts that live with the device role."""
        parts = self._parts
        if parts.cuda is not None:
            from ktbench.engine.cuda.home import CudaHome

            return CudaHome(operator.backend.matrices, at_device, parts.cuda.device)
        from ktbench.engine.fused import FusedExperts

        assert parts.host is not None
        assert isinstance(operator.fused, FusedExperts)
        return SameMemory(parts.host.at_device(operator.fused, len(parts.threads.roles(self._engine).device)))

    def _lean_steps(self, engine: EngineSpec) -> LeanSteps | None:
        """Recorded decode steps; None, and a note, where the model's steps cannot be."""
        script, parts = self._scripted, self._parts
        if script.workload.phase != "decode" or parts.attention is None:
            return None
        room = script.workload.prompt + script.workload.steps
        try:
            decoding = LeanDecoding(
                parts.network, parts.attention, self._recording(), script.prompt_layers, script.padding, room
            )
        except ValueError as error:
            self._notes.append(f"{engine.label}: steps are not recorded: {error}")
            return None
        steps = LeanSteps(decoding, parts.state, script)
        if decoding.why:
            self._notes.append(f"{engine.label}: steps are not recorded: {decoding.why}")
        return steps

    def _recording(self) -> Recording:
        parts = self._parts
        if parts.cuda is not None:
            return parts.cuda.recording(parts.state.counted)
        assert parts.attention is not None
        return ProgramRecording(parts.network, parts.state.tape, parts.attention.lower)

    def _chosen_deferral(self, engine: EngineSpec) -> int:
        """Tries 0, 1, 2, ... deferred experts for a few steps each."""
        busy = [self._busy_share(engine, deferral) for deferral in range(self.model.shape.top_k - LEAST_ON_TIME + 1)]
        self._notes = [told(busy)]
        return choose_deferral(busy)

    def _busy_share(self, engine: EngineSpec, deferral: int) -> float:
        """Share of the time of a step in which the host role works."""
        assert self._parts.host is not None
        team = self._parts.host.team
        self._set_up(replace(engine, deferral=deferral), deferral)
        count = min(_TRIED_STEPS, len(self._scripted.ids))
        began, busy = perf_counter_ns(), team.busy_ns
        for _ in range(count):
            self.step()
        return (team.busy_ns - busy) / (perf_counter_ns() - began)

    def start(self) -> None:
        """See `System`."""
        self._done = 0
        self._stepped.start()

    def step(self) -> None:
        """See `System`. Raises ValueError past the last step of the workload."""
        if self._done == len(self._scripted.ids):
            raise ValueError(f"workload.steps={self._done}: all were done, start again")
        self._logits = self._stepped.step(self._done)
        if self._parts.cuda is not None:
            self._parts.cuda.stream.finish()
        if self._residents is not None:
            self._residents.after_step(self._scripted.routing[self._done])
        self._done += 1

    def logits(self) -> NDArray[np.float32]:
        """See `System`."""
        if self._parts.cuda is not None:
            self._parts.cuda.check()
        return self._logits.float().numpy(force=True)

    def observe(self) -> tuple[Observation, ...]:
        """See `System`."""
        self._observed += 1  # other tokens each time
        observer = Observer(self._scripted.workload.seed, self._observed)
        self._parts.state.tap = observer
        try:
            self._logits = self._stepped.again(self._done - 1)
        finally:
            self._parts.state.tap = None
        return tuple(observer.seen)

    def reference(self, observation: Observation) -> NDArray[np.float32]:
        """See `System`."""
        operator = next(o for o in self._parts.operators if o.place.layer == observation.layer)
        routing = Routing(ids=torch.from_numpy(observation.ids), gates=torch.from_numpy(observation.gates))
        return Reference(operator.backend.matrices, torch.from_numpy(observation.hidden))(routing).numpy()

    def timeline(self) -> Timeline:
        """See `System`."""
        host = self._parts.host
        if host is not None:
            host.team.spans()
        segments = self._stepped.watched(self._done - 1)
        jobs = np.empty((0, 3), np.int64) if host is None else host.team.spans()
        return timeline(self._engine.label, segments, jobs)

    def notes(self) -> tuple[str, ...]:
        """See `System`."""
        return tuple(self._notes)

    def recorded_routing(self) -> tuple[PassRouting, ...]:
        """The routing of every pass of the workload that was configured."""
        return tuple(one_pass for step in self._scripted.routing for one_pass in step)

    def counters(self) -> Mapping[str, int]:
        """See `System`."""
        parts = self._parts
        counted = dict(parts.state.counted)
        for role in (parts.host, parts.device, self._residents):
            counted |= {} if role is None else role.counters()
        if parts.state.apart and parts.host is not None:
            counted["host_busy_ns"] = parts.host.team.busy_ns
            if parts.cuda is None:  # a CUDA device waits unseen
                counted["device_wait_ns"] = parts.state.tape.waited_ns
        return counted

    def work(self) -> Work:
        """See `System`."""
        parts, state, script = self._parts, self._parts.state, self._scripted
        precision = parts.host.packing.precision if parts.host is not None and state.fused else "bf16"
        nbytes = 2 * parts.dense_params
        if parts.device is not None and parts.device.lean:
            nbytes += parts.device.nbytes - 2 * parts.device.params
        dense = DenseWork(params=parts.dense_params, nbytes=nbytes, batch=script.workload.batch)
        experts = ExpertsWork(shape=self.model.shape, precision=precision, skipping=state.skipping)
        return mean_work([step_work(dense, experts, passes) for passes in script.routing])

    def close(self) -> None:
        """See `System`."""
        del self._parts, self._forward
        self._script = self._steps = None

    @property
    def _scripted(self) -> Script:
        if self._script is None:
            raise ValueError("configure comes before every other call")
        return self._script

    @property
    def _stepped(self) -> Steps:
        if self._steps is None:
            raise ValueError("configure comes before every other call")
        return self._steps
