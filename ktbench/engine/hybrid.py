"""The hybrid engine under measurement: prepares a workload once and replays it to every feature setting."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from statistics import median
from time import perf_counter_ns

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ktbench.engine.backend import Tap
from ktbench.engine.components import EngineComponents
from ktbench.engine.decode.prefill import ReplayPrefill
from ktbench.engine.decode.step import DecodeRunner, PassRunner, ReplayDecoder
from ktbench.engine.decode.timeline import timeline
from ktbench.engine.device_placement import DevicePlacement, detach
from ktbench.engine.experts import ExpertsOperator
from ktbench.engine.forms import ExpertFunctions
from ktbench.engine.protocol import require
from ktbench.engine.replay import ReplaySystem, TraceReplay
from ktbench.engine.routing import PassRouting, Routing
from ktbench.engine.work import ExpertsWork, mean_work, step_work
from ktbench.engine.workload_trace import TraceWriter, WorkloadTrace, pass_runner
from ktbench.spec.engine import EngineSpec, PlacementSpec, choose_deferral, deferral_candidates, seen_features
from ktbench.spec.features import FeatureValue
from ktbench.spec.record import Work
from ktbench.spec.run_spec import ModelSpec, RunSpec
from ktbench.spec.step.work import DenseWork
from ktbench.spec.timeline import Timeline

_TRIED_STEPS = 6


class HybridEngine(ReplaySystem):
    """Implements `ktbench.engine.protocol.System`; made by `ktbench.engine.load.load_engine`."""

    def __init__(self, model: ModelSpec, components: EngineComponents) -> None:
        super().__init__(model, components.network)
        self._components = components
        self._engine = EngineSpec()
        self._placement: DevicePlacement | None = None
        self._placements: dict[PlacementSpec, DevicePlacement] = {}

    def configure(self, spec: RunSpec) -> None:
        """See `System`. Raises Unsupported, and ValueError for a model, layout or thread count that is not there."""
        require(spec, self.model)
        self._components.prepare(spec)
        self._trace = self._traces.of(spec.workload, lambda: self._write(spec))
        self._notes = []
        engine = self._engine = spec.engine
        self._set_up(self._with_deferral(engine) if engine.deferral == "auto" else engine)

    def _write(self, spec: RunSpec) -> WorkloadTrace:
        """The routers are recorded with the original numerics where those weights are here."""
        components = self._components
        kept = components.operators[0].original is not None
        lean = components.device is not None and not components.device.keeps_original
        detach(components.operators)
        fused, avx2 = spec.engine.fused and (lean or not kept), spec.engine.avx2
        self._use(EngineSpec(avx2=fused and avx2, avx512=fused and not avx2, packed_dense=fused and lean))
        return TraceWriter(
            workload=spec.workload, shape=self.model.shape, forward=self._forward, state=components.state
        ).write()

    def _set_up(self, engine: EngineSpec) -> None:
        self._use(engine)
        self._place(engine)
        self._replay = TraceReplay(self._traced, self._runner(engine))
        self.start()

    def _use(self, engine: EngineSpec) -> None:
        """From now on the experts run as `engine` says."""
        acts = engine.defer_prefill or self._trace is None or self._trace.workload.phase == "decode"
        note = self._components.switch(engine if acts else engine.without_routing)
        self._notes += [note] if note else []

    def _place(self, engine: EngineSpec) -> None:
        """Puts experts where the placement says; a dynamic one continues from where its last trial ended."""
        components, placement = self._components, engine.placement
        before, self._placement = self._placement, None
        if placement.policy != "host" and components.host is not None:
            self._placement = self._placements.get(placement) or self._placements.setdefault(
                placement, self._new_placement(engine)
            )
        detach(components.operators)
        if before is not None and before is not self._placement:
            before.release()
        if self._placement is not None and components.host is not None:
            self._placement.attach(components.operators)
            components.host.choose(engine)

    def _new_placement(self, engine: EngineSpec) -> DevicePlacement:
        components = self._components
        device = torch.device("cpu") if components.cuda is None else components.cuda.device
        return DevicePlacement(engine.placement, self.model, components.device_experts_for(engine), device)

    def _runner(self, engine: EngineSpec) -> DecodeRunner:
        """Recorded steps where features need them; else, or where they cannot be (then with a note), passes."""
        trace, components = self._traced, self._components
        passes, decodes = pass_runner(trace.workload, self._forward, components.state), trace.workload.phase == "decode"
        recorded = engine.records_steps and (engine.cuda_graph or decodes)
        if not recorded or components.attention is None:
            return passes
        what = "steps" if decodes else "passes"
        try:
            runner = self._decoder() if decodes else self._prefill(passes)
        except ValueError as error:
            self._notes.append(f"{self._engine.label}: {what} are not recorded: {error}")
            return passes
        runner.record(trace.ids[0], trace.routing[0])
        if runner.why:
            self._notes.append(f"{self._engine.label}: {what} are not recorded: {runner.why}")
        return runner

    def _decoder(self) -> ReplayDecoder:
        trace = self._traced
        return self._components.decoder(trace.start, trace.workload.prompt + trace.workload.steps)

    def _prefill(self, passes: PassRunner) -> ReplayPrefill:
        """Its cache is like the one that a first chunk leaves."""
        trace, work = self._traced, self._traced.workload
        passes.begin(trace.start)
        passes.step(trace.ids[0][:, : work.chunk], trace.routing[0][:1])
        left = self._forward.snapshot()
        self._forward.reset()
        return self._components.prefill(left, work)

    def _with_deferral(self, engine: EngineSpec) -> EngineSpec:
        """The engine with the number of deferred experts that `auto` chooses: 0, 1, 2, ... for a few steps each."""
        busy = [self._busy_share(engine, deferral) for deferral in deferral_candidates(self.model.shape.top_k)]
        chosen = choose_deferral(busy)
        shares = ", ".join(f"{share:.0%}" for share in busy)
        self._notes = [f"deferral=auto chose {chosen}: host role busy {shares} of the step at N = 0 to {len(busy) - 1}"]
        return replace(engine, deferral=chosen)

    def _busy_share(self, engine: EngineSpec, deferral: int) -> float:
        """Share of a step in which the host role works: the median of a few steps after a first one."""
        self._set_up(replace(engine, deferral=deferral))
        steps = min(_TRIED_STEPS, len(self._traced.ids))
        shares = [self._step_busy_share() for _ in range(steps)]
        return median(shares[1:] or shares)

    def _step_busy_share(self) -> float:
        assert self._components.host is not None
        team = self._components.host.team
        began, busy = perf_counter_ns(), team.busy_ns
        self.step()
        return (team.busy_ns - busy) / (perf_counter_ns() - began)

    def start(self) -> None:
        super().start()
        if self._components.cuda is not None:
            self._components.cuda.clock.start()

    def step(self) -> None:
        """See `System`. Raises ValueError past the last step of the workload."""
        replay = self._replayed
        self._components.timed(replay.step)
        if self._placement is not None:
            self._placement.after_step(replay.trace.selected[replay.done - 1])

    def own_step_s(self) -> float | None:
        """See `HasClock`: by the clock of a CUDA device."""
        return None if self._components.cuda is None else self._components.cuda.clock.mean_s()

    def logits(self) -> NDArray[np.float32]:
        self._components.check()
        return super().logits()

    @contextmanager
    def _tapped(self, tap: Tap) -> Iterator[None]:
        components = self._components
        components.state.tap = tap
        try:
            with nullcontext() if components.cuda is None else components.cuda.attention_watch:
                yield
        finally:
            components.state.tap = None

    def notes(self) -> tuple[str, ...]:
        cuda, host = self._components.cuda, self._components.host
        of_host = () if host is None else host.notes(self._engine)
        return (*super().notes(), *of_host, *(() if cuda is None else cuda.notes()))

    def _experts_of(self, layer: int) -> ExpertFunctions:
        return self._operator_of(layer).backend.in_float32

    def _operator_of(self, layer: int) -> ExpertsOperator:
        return next(operator for operator in self._components.operators if operator.position.layer == layer)

    def _moe_layers(self) -> tuple[int, ...]:
        return tuple(operator.position.layer for operator in self._components.operators)

    def _run_experts(self, layer: int, hidden: Tensor, routing: Routing) -> Tensor:
        device = self._forward.network.device
        there = Routing(ids=routing.ids.to(device), gates=routing.gates.to(device))
        output = self._operator_of(layer).run_all(hidden.to(device), there)
        self._components.finish()
        return output

    def timeline(self) -> Timeline:
        host = self._components.host
        if host is not None:
            host.team.spans()  # of the steps before
        segments = self._replayed.profile()
        jobs = (
            host.team.spans() if host is not None and self._components.state.concurrent else np.empty((0, 3), np.int64)
        )
        deferral = self._components.state.engine.deferral
        on_time = deferral == "auto" or deferral < self.model.shape.top_k
        return timeline(self._engine.label, segments, jobs, on_time=on_time)

    def chosen(self) -> Mapping[str, FeatureValue]:
        chosen: dict[str, FeatureValue] = {}
        if self._engine.deferral == "auto":
            chosen["deferral"] = self._components.state.engine.deferral
        if self._engine.device_prefill_tokens and self._components.cuda is not None:
            streams = [self._components.cuda.streams(len(one.ids[0])) for one in self._traced.routing[0]]
            chosen |= seen_features(self._engine, sum(streams), len(streams))
        return chosen

    def recorded_routing(self) -> tuple[PassRouting, ...]:
        """The routing of every pass of the workload that was configured."""
        return tuple(one_pass for step in self._traced.routing for one_pass in step)

    def counters(self) -> Mapping[str, int]:
        return self._components.counters() | ({} if self._placement is None else dict(self._placement.counters()))

    def work(self) -> Work | None:
        """See `System`: beside a device that of the host role, since roofs are those of cores; None where it has none,
        and where a feature from outside decides.

        Experts with a device are those that are there now, which a dynamic placement may have changed since.
        """
        if any(own.has("choose") or own.has("run") for own in self._components.state.own):
            return None  # which experts run is not in the trace
        trace, experts = self._traced, self._experts_work()
        if self._components.cuda is None:
            return mean_work([step_work(self._dense_work(), experts, passes) for passes in trace.routing])
        streams = self._components.cuda.streams
        hosted = [[run_pass for run_pass in passes if not streams(len(run_pass.ids[0]))] for passes in trace.routing]
        work = mean_work([step_work(None, experts, passes) for passes in hosted])
        return work if work.weight_bytes else None

    def _dense_work(self) -> DenseWork:
        components, nbytes = self._components, 2 * self._components.dense_params
        if components.device is not None and components.device.lean:
            nbytes += components.device.nbytes - 2 * components.device.params
        return DenseWork(params=components.dense_params, nbytes=nbytes, batch=self._traced.workload.batch)

    def _experts_work(self) -> ExpertsWork:
        host, state = self._components.host, self._components.state
        precisions = host.precisions if host is not None and state.fused else (("bf16", "bf16"),)
        away = self._placement.at_device() if self._placement is not None and self._components.cuda is not None else ()
        skipping = state.engine.skipping
        return ExpertsWork(shape=self.model.shape, precisions=precisions, skipping=skipping, elsewhere=away)

    def close(self) -> None:
        super().close()
        if self._placement is not None:
            self._placement.release()
        if self._components.cuda is not None:
            self._components.cuda.release()
        del self._components
