"""The CUDA device role: who runs the experts of a layer, and captured steps."""

from __future__ import annotations

import os
from collections.abc import Sequence
from time import perf_counter_ns
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from ktbench.engine.cuda.attention import AttentionWatch, MaskedAttention, set_up_attention
from ktbench.engine.cuda.graph import CudaCapturing, GraphRecording
from ktbench.engine.cuda.handover import HostLink
from ktbench.engine.cuda.offload import CudaOriginal, HostOffloadBackend
from ktbench.engine.cuda.packed import packed_layout
from ktbench.engine.cuda.residents import Bf16Residents, PackedResidents, UnpackedResidents
from ktbench.engine.cuda.stream import CurrentStream, Pins, SideStream, StepClock, Streams, cuda_runtime
from ktbench.engine.cuda.streamed import ExpertStream, StreamedExperts, crossover
from ktbench.engine.decode.program import CallRecorder
from ktbench.engine.device_placement import DeviceExperts
from ktbench.engine.experts import ExpertsOperator, OriginalExperts
from ktbench.engine.protocol import Unsupported
from ktbench.spec.engine import Handover

if TYPE_CHECKING:
    from ktbench.engine.fused import FusedExperts


class CudaRole:
    """One for all layers of an engine, which lie on `device`: their work goes through the current one of `streams`.

    `originals` are the experts that base runs on the host, layer after layer. A thread that watches for hand-overs runs
    on `callbacks`, anywhere where there are none.
    """

    def __init__(
        self,
        recorder: CallRecorder,
        device: torch.device,
        streams: Streams,
        capturing: CudaCapturing,
        pins: Pins,
        callbacks: Sequence[int] = (),
    ) -> None:
        self.device, self.stream, self.attention = device, streams.current, MaskedAttention()
        self.clock = StepClock(streams.current)
        self._pins, self._expert_stream = pins, ExpertStream(streams.side, pins, device)
        self._recorder, self._streams, self._capturing = recorder, streams, capturing
        self._link = HostLink(streams.side, pinned=device.type == "cuda", cpus=callbacks)
        self.attention_watch = AttentionWatch()
        self.originals: list[OriginalExperts] = []
        self._offloads: list[HostOffloadBackend] = []
        self._streamed: list[StreamedExperts] = []
        recorder.watch.clock = self._finished_ns

    @classmethod
    def open(cls, recorder: CallRecorder) -> CudaRole:
        """On PyTorch's current device. Raises OSError where no CUDA runtime is loaded.

        CUDA starts its threads here, where the calling one may run.
        """
        device = torch.device("cuda", torch.cuda.current_device())
        streams = Streams(current=CurrentStream(), side=SideStream(), transfers=SideStream())
        streams.side.start()
        set_up_attention()
        return cls(recorder, device, streams, CudaCapturing(), Pins(cuda_runtime()), sorted(os.sched_getaffinity(0)))

    def backends(
        self, original: OriginalExperts | None, packed: FusedExperts | None, layer: int
    ) -> tuple[CudaOriginal | None, HostOffloadBackend | StreamedExperts | None]:
        """How the device calls the experts of decoder layer `layer`, which stay on the host."""
        base = fused = None
        if original is not None:
            self.originals.append(original)
            base = CudaOriginal(original)
        if packed is not None:
            offload = HostOffloadBackend(packed, self._link, self._recorder.watch, layer)
            self._offloads.append(offload)
            fused = self._with_stream(offload, packed)
        return base, fused

    def _with_stream(self, offload: HostOffloadBackend, packed: FusedExperts) -> HostOffloadBackend | StreamedExperts:
        """Where the device can unpack the experts, calls of many tokens may stream."""
        layout = packed_layout(packed)
        if layout is None:
            return offload
        self._streamed.append(StreamedExperts(offload, packed.form.glu, layout, self._expert_stream))
        return self._streamed[-1]

    def hand_over_by(self, name: Handover) -> None:
        """How layers hand calls to the host from now on. Raises OSError where the driver has no flags."""
        self._link.choose(name)

    @property
    def flag_answers(self) -> int:
        """Hand-overs that were asked for by flags so far."""
        return self._link.answered

    def stream_from(self, tokens: int | Literal["auto"], top_k: int) -> str:
        """From now on passes of so many tokens stream, 0: none does; gives a note on what `auto` chose.

        Raises Unsupported where the packed experts do not stream.
        """
        stream, note = self._expert_stream, ""
        if tokens and len(self._streamed) < len(self._offloads):
            raise Unsupported("engine.device_prefill_tokens: a device does not unpack these experts")
        if tokens:
            self._pin_experts()
        if tokens == "auto":
            tokens = stream.crossover or crossover(self._streamed[0], top_k, self.stream.finish)
            stream.crossover = tokens
            note = f"device_prefill_tokens=auto chose {tokens:,} tokens"
        stream.from_tokens = tokens or None
        return note

    def _pin_experts(self) -> None:
        self._expert_stream.pin([experts.memory for experts in self._streamed])

    def residents(self, operator: ExpertsOperator, at_device: NDArray[np.bool_], *, move: bool) -> DeviceExperts:
        """The experts of a layer that are marked in `at_device` [E], on the device; `move`: others take their place."""
        host = operator.fused
        if not isinstance(host, StreamedExperts):
            return UnpackedResidents(operator.backend.matrices, at_device, self.device)
        if move:
            self._pin_experts()
        kind = Bf16Residents if host.layout.is_bf16 else PackedResidents
        return kind(host, at_device, self.device, self._streams.transfers)

    def streams(self, tokens: int) -> bool:
        """Whether the experts of a pass of so many tokens stream."""
        return self._expert_stream.takes(tokens)

    @property
    def streamed_bytes(self) -> int:
        """Bytes of packed experts that went to the device so far."""
        return self._expert_stream.nbytes

    def notes(self) -> tuple[str, ...]:
        """Remarks for the record: kernels that attention ran on under observation, and what is copied slower."""
        kernels = ", ".join(self.attention_watch.chosen)
        return tuple(filter(None, (kernels and f"attention ran on {kernels}", self._pins.note)))

    def release(self) -> None:
        """Memory of the host is no longer pinned, as it must be before it is freed; nothing may be on its way."""
        self._expert_stream.release()

    def recording(self, counted: dict[str, int]) -> GraphRecording:
        """For a step to be captured; `counted["graph_replays"]` counts its replays."""
        return GraphRecording(self._recorder, self.stream, self._capturing, counted)

    def check(self) -> None:
        """Raise what went wrong in calls of the host since the last check; all that was started must be finished."""
        self._link.mechanism.check()
        for offload in self._offloads:
            offload.check()

    def _finished_ns(self) -> int:
        """Time for a timeline: what was put into the stream before is done. The host's own threads go on meanwhile."""
        self.stream.finish()
        return perf_counter_ns()
