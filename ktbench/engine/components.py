"""What the hybrid engine is made of, and how features switch it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, cast

import torch
from transformers import PreTrainedModel

from ktbench.engine.backend import MoERuntimeState
from ktbench.engine.decode.inputs import DecodeState
from ktbench.engine.decode.prefill import ReplayPrefill
from ktbench.engine.decode.program import ProgramRecording, StepRecording
from ktbench.engine.decode.step import ReplayDecoder
from ktbench.engine.device_placement import MakeDeviceExperts, SharedMemoryExperts
from ktbench.engine.experts import ExpertsOperator
from ktbench.engine.inject.own_features import OwnFeature, know_features, make_hook
from ktbench.engine.roles import split_cpus
from ktbench.spec.engine import EngineSpec
from ktbench.spec.run_spec import RunSpec, WorkloadSpec

if TYPE_CHECKING:
    from ktbench.engine.cuda.attention import MaskedAttention
    from ktbench.engine.cuda.role import CudaRole
    from ktbench.engine.decode.attention import StepAttention
    from ktbench.engine.dense import DenseOperators
    from ktbench.engine.fused import FusedExperts, FusedHost


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineComponents:
    """What an engine is made of: the network with its operators in place, and who runs them.

    `host` has the packed experts, `device` the packed linear layers, `attention` that of recorded steps; `cuda` is
    there where the device role is a CUDA device. `hooks` are those of features from outside that were on so far.
    `cpus` has one cpu of every core of both roles, `dense_params` counts the weights that every token meets, `top_k` is
    how many experts a token selects.
    """

    network: PreTrainedModel
    operators: Sequence[ExpertsOperator]
    state: MoERuntimeState
    host: FusedHost | None
    device: DenseOperators | None
    attention: StepAttention | MaskedAttention | None
    cuda: CudaRole | None
    cpus: tuple[int, ...]
    dense_params: int
    top_k: int
    hooks: dict[str, OwnFeature] = field(default_factory=dict)

    def prepare(self, spec: RunSpec) -> None:
        """Threads and features of a cell. Raises Unsupported, and ValueError for a layout or threads not there."""
        know_features(spec.engine)
        use_threads(self.cpus, spec.engine, self.host, self.device)
        if self.host is not None and spec.engine.fused:
            self.host.require(spec)

    def counters(self) -> dict[str, int]:
        """Cumulative counts by the names of the feature table, and others; of concurrent roles their times as well."""
        counted = dict(self.state.counted)
        for role in (self.host, self.device):
            counted |= {} if role is None else role.counters()
        if self.state.concurrent and self.host is not None:
            counted["host_busy_ns"] = self.host.team.busy_ns
            if self.cuda is None:  # not measurable on CUDA
                counted["device_wait_ns"] = self.state.recorder.waited_ns
        if self.cuda is not None:
            counted |= {"streamed_bytes": self.cuda.streamed_bytes, "flag_answers": self.cuda.flag_answers}
        return counted

    def timed(self, step: Callable[[], None]) -> None:
        """Do a step and return when the device has finished it, which is timed by its own clock as well."""
        if self.cuda is None:
            step()
        else:
            self.cuda.clock.step(step)

    def finish(self) -> None:
        """Return when the device has finished all its work."""
        if self.cuda is not None:
            self.cuda.stream.finish()

    def check(self) -> None:
        """Raise what went wrong in calls of a CUDA device to the host since the last check."""
        if self.cuda is not None:
            self.cuda.check()

    def switch(self, engine: EngineSpec) -> str:
        """From now on the experts run as `engine` says; gives a note on what was chosen, "" for none.

        Raises ValueError where their weights were not kept at load, Unsupported for experts that do not stream.
        """
        state, host = self.state, self.host
        state.fused, state.concurrent = engine.fused, engine.fused and host is not None and host.concurrent
        state.engine = engine
        state.use_own([make_hook(feature, value, self.hooks) for feature, value in engine.on if feature.is_own])
        _ = self.operators[0].backend
        if host is not None and state.fused:
            host.choose(engine)
        if self.device is not None:
            self.device.lean = engine.packed_dense
        if self.cuda is None:
            return ""
        self.cuda.hand_over_by(engine.handover)
        return self.cuda.stream_from(engine.device_prefill_tokens, self.top_k)

    def decoder(self, state: DecodeState, room: int) -> ReplayDecoder:
        """Recorded decode steps from `state` on, for up to `room` positions; raises ValueError, see `ReplayDecoder`."""
        assert self.attention is not None
        recording: StepRecording
        if self.cuda is not None:
            recording = self.cuda.recording(self.state.counted)
        else:
            recording = ProgramRecording(self.network, self.state.recorder, self.attention.lower)
        return ReplayDecoder(self.network, self.attention, recording, self.state, state, room)

    def prefill(self, state: DecodeState, workload: WorkloadSpec) -> ReplayPrefill:
        """Recorded chunks of the prompts of a workload; raises ValueError, see `ReplayPrefill`."""
        assert self.cuda is not None
        cuda, recording = self.cuda, self.cuda.recording(self.state.counted)
        return ReplayPrefill(self.network, cuda.attention, recording, self.state, state, workload)

    def device_experts_for(self, engine: EngineSpec) -> MakeDeviceExperts:
        """Who runs a layer's experts that live with the device role."""
        if self.cuda is not None:
            return partial(self.cuda.residents, move=engine.placement.policy == "dynamic")
        assert self.host is not None
        host, threads = self.host, len(split_cpus(self.cpus, engine).device)
        return lambda operator, _: SharedMemoryExperts(host.at_device(cast("FusedExperts", operator.fused), threads))


def use_threads(cpus: Sequence[int], engine: EngineSpec, host: FusedHost | None, device: DenseOperators | None) -> None:
    """From now on everything runs as many threads as `engine` requests on `cpus`; raises as `split_cpus`."""
    roles = split_cpus(cpus, engine)
    torch.set_num_threads(len(roles.device))
    if host is not None:
        host.run_on(roles.host)
    if device is not None:
        device.resize(len(roles.device))
