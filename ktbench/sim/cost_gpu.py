"""Costs of a step with the device role on a GPU: KTransformers, and Fiddler's scheme as its base."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ktbench.sim.calibration import Calibration
from ktbench.sim.host_kernels import DecodeExperts, PrefillExperts, TorchExperts
from ktbench.sim.routing import ALL_ON_HOST, SAMPLES, Coverage, coverage, loads_of
from ktbench.sim.workloads import (
    CostModel,
    DeviceTask,
    Pass,
    SharedOrder,
    SimulatedWorkload,
    head_rows,
    kept_experts,
    wants_inputs,
    workload_of,
)
from ktbench.spec.machine import MachineSpec
from ktbench.spec.run_spec import RunSpec
from ktbench.spec.step.work import ADAMW_BYTES, BF16_BYTES, Sizes, sizes_of
from ktbench.spec.timeline import Resource
from ktbench.spec.weights import STREAMED_CHUNK_BYTES

# Their modules launch the shared expert before a blocking copy, and beside the experts only while a graph is captured;
# others copy first.
_BLOCKING_FAMILIES = ("deepseek_v2", "deepseek_v3")
_A100_GHZ = 1.41  # the clock at which `kernel_us` was fitted
# Of a layer's kernels: gate, up, activation, product, down, addition.
_SHARED_KERNELS = 6
# Of LoRA on an attention, in PEFT's modules: on each of four matrices a conversion, two products, a factor, a sum.
_ADAPTER_KERNELS = 4 * 5
# Of the loss: conversions, the logarithm of a sum, what is picked, their mean.
_LOSS_KERNELS = 8
# Of a chunk of experts that stream: unpacking, two products, activation, the sum.
_CHUNK_KERNELS = 24


def gpu_costs(spec: RunSpec, calibration: Calibration) -> GpuCosts:
    """The costs of a cell. Raises ValueError for a cell that is not on a machine with a GPU."""
    if spec.machine is None or spec.machine.gpu is None:
        raise ValueError("a step with a GPU needs a machine that has one")
    return GpuCosts(spec=spec, machine=spec.machine, cost=calibration, sizes=sizes_of(spec))


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuCosts(CostModel):
    """`CostModel` of a machine with a GPU under a calibration."""

    spec: RunSpec
    machine: MachineSpec
    cost: Calibration
    sizes: Sizes
    _calls: dict[tuple[Pass, int, int, Coverage, bool], float] = field(default_factory=dict, init=False, compare=False)
    _covered: dict[int, Coverage] = field(default_factory=dict, init=False, compare=False)

    @property
    def base(self) -> bool:
        """Whether experts run one after the other through PyTorch, and modules are PyTorch's own."""
        return not self.spec.engine.fused

    @property
    def workload(self) -> SimulatedWorkload:
        """What kind of step it is."""
        return workload_of(self.spec)

    def captured(self, work: Pass) -> bool:
        """Whether a pass is one CUDA graph: a decode step, or a whole chunk of a prompt."""
        chunk, kind = self.spec.workload.chunk, self.workload
        return self.spec.engine.cuda_graph and (kind.few_tokens or (kind.many_tokens and work.tokens == chunk))

    @property
    def host(self) -> Resource:
        return "host"

    def shared_order(self, work: Pass) -> SharedOrder:
        if self.base or self.workload.trains:
            return "after"
        return "beside" if self.captured(work) or self.sizes.family not in _BLOCKING_FAMILIES else "before"

    @property
    def step_launch_s(self) -> float:
        """See `CostModel`; of decode steps."""
        return 0.0 if self.workload.many_tokens else self.cost["step_ms"] * 1e-3

    @property
    def layer_kernels(self) -> int:
        """Kernels of a layer, those of the shared expert included."""
        name = ("base_kernels_" if self.base else "kernels_") + ("latent" if self.sizes.latent else "grouped")
        return round(self.cost[name])

    def attention(self, work: Pass) -> DeviceTask:
        """Attention, norms and router."""
        sizes = self.sizes
        shared = _SHARED_KERNELS if sizes.shared_params else 0
        params = sizes.attention_params + sizes.fixed_params
        beside, skips_half = self._beside(work), sizes.latent and not self._fixed
        read = sizes.attention_bytes(beside * work.batch) + sizes.gate_bytes
        flops = sizes.absorbed_flops if work.tokens == 1 else sizes.score_flops
        pairs = work.tokens * beside + work.tokens**2 / (2 if skips_half else 1)
        lora = self.spec.lora.attention
        seconds = (
            self._dense_s(params, read, work.rows)
            + work.scores * work.batch * pairs * flops / self._flops_per_s("attention")
            + self._expanded_s(work.tokens, beside * work.batch)
            + work.moved * self._moved_s(work.rows)
            + work.adapted * 2.0 * lora * work.rows / self._flops_per_s("gemm")
        )
        kernels = self.layer_kernels - shared + (_ADAPTER_KERNELS if lora else 0)
        return self._task(work, "attention", "attention", seconds, kernels)

    @property
    def _fixed(self) -> bool:
        """Whether attention of a prefill computes all positions that its cache has room for, as captured chunks do."""
        return self.workload.many_tokens and self.spec.engine.cuda_graph and self.spec.workload.has_whole_chunk

    def _beside(self, work: Pass) -> int:
        """Positions of a sequence that attention computes besides those of the pass."""
        return self.spec.workload.prompt - work.tokens if self._fixed else work.context

    def _expanded_s(self, tokens: int, latents: int) -> float:
        """Latents besides those of the pass, which each chunk of a prompt expands again."""
        return 2.0 * latents * self.sizes.fixed_params / self._flops_per_s("gemm") if tokens > 1 else 0.0

    def dense(self, work: Pass) -> DeviceTask:
        return self._task(work, "dense", "other", self._mlp_s(self.sizes.dense_params, work), _SHARED_KERNELS)

    def shared(self, work: Pass) -> DeviceTask | None:
        params = self.sizes.shared_params
        return self._task(work, "shared", "shared", self._mlp_s(params, work), _SHARED_KERNELS) if params else None

    def head(self, work: Pass) -> DeviceTask:
        """The output head in bf16."""
        params, rows = self.sizes.head_params, head_rows(self.spec, work)
        return self._task(work, "head", "other", self._dense_s(params, 2.0 * params, rows), 2)

    def loss(self, work: Pass) -> DeviceTask:
        return self._task(work, "loss", "other", self._memory_s(work.rows * self.sizes.logits_bytes), _LOSS_KERNELS)

    def optimiser_s(self, role: Resource) -> float:
        shape, lora = self.spec.model.shape, self.spec.lora
        if role == "device":
            return self._memory_s(shape.layers * lora.attention * ADAMW_BYTES)
        numbers = shape.moe_layers * shape.experts * lora.expert
        return numbers * ADAMW_BYTES / (self.machine.domains * self._experts.moved_bytes_per_s)

    def all_reduce(self, work: Pass) -> DeviceTask | None:
        """A ring over all GPUs, by the faster one of NCCL's protocols: LL, with less latency and bandwidth, or Simple.

        A step sends each GPU's share of the hidden states to the next one, twice around the ring but for its own
        (Patarasuk and Yuan 2009); the latencies, a kernel and its launch included, are those that NCCL chooses by.
        """
        count = self._together
        if count == 1:
            return None
        cost, nvlink, steps = self.cost, self.machine.nvlink_gb_per_s, 2 * (count - 1)
        link = cost["ring_link"] * (nvlink or self._of(self.machine.link_gb_per_s)) * 1e9
        sent_s = steps / count * work.rows * self.sizes.hidden * BF16_BYTES / link
        low, simple = ("ll_nvlink_hop_us", "simple_nvlink_hop_us") if nvlink else ("ll_hop_us", "simple_hop_us")
        by_low_latency = (cost["ll_us"] + steps * cost[low]) * 1e-6 + sent_s / cost["ll_link"]
        by_simple = (cost["simple_us"] + steps * cost[simple]) * 1e-6 + sent_s
        return DeviceTask(name="all-reduce", kind="copy", seconds=min(by_low_latency, by_simple))

    def device_experts(self, work: Pass, layer: int) -> DeviceTask | None:
        """Routed experts that are placed on the device or stream to it, for their expected share of the selections."""
        if self.streams(work):
            return self._streamed(work, layer)
        placed = self._placed(layer)
        if not placed.device:
            return None
        loads = loads_of(self.spec, self.cost, work.rows, kept_experts(self.spec))[layer % SAMPLES]
        return self.experts(work, int((loads > 0).sum()) * placed.device, int(loads.sum()) * placed.device)

    def experts(self, work: Pass, count: float, tokens: float) -> DeviceTask:
        """`count` routed experts on the device for `tokens` selections."""
        read = count * self.sizes.expert_bytes
        flops_s = tokens * self.sizes.expert_flops / self._flops_per_s("gemm")
        return self._task(work, "device experts", "experts", max(read / self._stream, flops_s), _SHARED_KERNELS)

    def routed_s(self, work: Pass, layer: int, first: int, last: int) -> float:
        """See `CostModel`; layers are drawn, and repeated through the depth of a model."""
        return 0.0 if self.streams(work) else self._on_host_s(work, layer, first, last)

    def streams(self, work: Pass) -> bool:
        """Whether the experts of a pass stream to the device; `auto` does where the first layer gains by it."""
        asked = self.spec.engine.device_prefill_tokens
        if not self.workload.many_tokens or asked == 0:
            return False
        if asked != "auto":
            return work.rows >= asked
        on_host_s = self._on_host_s(work, 0, 0, kept_experts(self.spec)) + self._handed_over_s(work)
        return self._streamed(work, 0).seconds + self.cost["sync_ms"] * 1e-3 < on_host_s

    def _streamed(self, work: Pass, layer: int) -> DeviceTask:
        """Packed experts over the links beside their products on the device, which reads them, writes bf16, reads it.

        Each GPU gets its part of every expert over its own link. What the host writes before that is not hidden.
        """
        loads = loads_of(self.spec, self.cost, work.rows, kept_experts(self.spec))[layer % SAMPLES]
        count, sizes = int((loads > 0).sum()), self.sizes
        links = self.cost["link_stream"] * self._of(self.machine.link_gb_per_s) * self._of(self.machine.gpus)
        copied_s = count * sizes.expert_bytes / (links * 1e9)
        written_s = count * sizes.expert_bytes * 1e-6 * self.cost["stream_write_ms_per_mb"] * 1e-3
        moved = count * (sizes.expert_bytes + sizes.expert_flops * BF16_BYTES)
        multiplied_s = moved / self._stream + int(loads.sum()) * sizes.expert_flops / self._flops_per_s("gemm")
        kernels = _CHUNK_KERNELS * -(-count * sizes.expert_bytes // STREAMED_CHUNK_BYTES)
        return self._task(work, "streamed experts", "experts", written_s + max(copied_s, multiplied_s), kernels)

    def _on_host_s(self, work: Pass, layer: int, first: int, last: int) -> float:
        picks, sample, placed = last - first, layer % SAMPLES, self._placed(layer)
        inputs = not work.back or wants_inputs(self.spec, layer)
        key = work, sample, picks, placed, inputs
        if key not in self._calls:
            loads = loads_of(self.spec, self.cost, work.rows, picks)[sample]
            if work.back:
                self._calls[key] = self._experts.back_s(loads, inputs=inputs)
            else:
                self._calls[key] = self._call_s(loads, placed) if picks else 0.0
        return self._calls[key]

    def layer_alone_s(self) -> float:
        """Mean over the layers drawn."""
        drawn = loads_of(self.spec, self.cost, self.spec.workload.batch, self.spec.model.shape.top_k)
        return float(np.mean([self._call_s(loads, ALL_ON_HOST) for loads in drawn]))

    def hand_over_s(self, work: Pass, layer: int) -> float:
        """Both copies of a layer; where experts stream, which of them have tokens is read back alone.

        A layer whose experts all live on the device has what `idle_copies` says.
        """
        if self.streams(work):
            return self.cost["sync_ms"] * 1e-3
        return self._handed_over_s(work) * (1.0 if self._placed(layer).any_on_host else self.cost["idle_copies"])

    def _handed_over_s(self, work: Pass) -> float:
        """In prefill through memory that is not pinned, and mapped anew where it is large."""
        cost, sync_s = self.cost, self.cost["sync_ms"] * 1e-3
        if not self.workload.many_tokens:
            return sync_s
        moved_mb = work.rows * self.sizes.hidden * BF16_BYTES * 1e-6
        copy_s = moved_mb * 1e-3 / min(cost["pageable_gb_per_s"], self.machine.link_gb_per_s or 0.0)
        fresh_s = moved_mb * cost["fresh_ms_per_mb"] * 1e-3 if moved_mb > cost["fresh_mb"] else 0.0
        return sync_s + 2 * (copy_s + fresh_s)

    def _placed(self, layer: int) -> Coverage:
        if layer not in self._covered:
            self._covered[layer] = coverage(self.spec, self.cost, layer - self.spec.model.shape.dense_layers)
        return self._covered[layer]

    def _call_s(self, loads: NDArray[np.int64], placed: Coverage) -> float:
        """One call of a layer's experts on the host, `loads` [E] being the tokens of each."""
        if not self.base and not self.workload.few_tokens:
            return self._experts.seconds(loads, placed)
        kernel = TorchExperts if self.base else DecodeExperts
        return kernel(spec=self.spec, machine=self.machine, cost=self.cost, sizes=self.sizes).seconds(loads, placed)

    @property
    def _experts(self) -> PrefillExperts:
        return PrefillExperts(spec=self.spec, machine=self.machine, cost=self.cost, sizes=self.sizes)

    def _task(self, work: Pass, name: str, kind: str, work_s: float, kernels: int) -> DeviceTask:
        """A part's work, the least that its kernels take, and their launches; backward there are twice as many.

        A graph holds its launches; in base they are part of a kernel's time.
        """
        kernels *= 2 if work.back else 1
        if self.base:
            return DeviceTask(name=name, kind=kind, seconds=work_s + kernels * self.cost["base_launch_us"] * 1e-6)
        least_us = self.cost["kernel_us"] * _A100_GHZ / self._of(self.machine.gpu_ghz)
        launch_s = 0.0 if self.captured(work) else kernels * self.cost["launch_us"] * 1e-6
        return DeviceTask(name=name, kind=kind, seconds=work_s + kernels * least_us * 1e-6, launch_s=launch_s)

    def _mlp_s(self, params: int, work: Pass) -> float:
        return self._dense_s(params, params * self.sizes.bytes_per_param, work.rows)

    def _dense_s(self, params: int, read_bytes: float, tokens: int) -> float:
        """Products of `tokens` rows: the weights are read, or their arithmetic takes longer."""
        flops = 2.0 * params * tokens
        return max(read_bytes / self._stream, flops / self._flops_per_s("gemm") if tokens > 1 else 0.0)

    def _moved_s(self, tokens: int) -> float:
        return self._memory_s(tokens * self.sizes.elementwise_bytes) if tokens > 1 else 0.0

    def _memory_s(self, nbytes: float) -> float:
        """Moving so many bytes in a GPU's memory."""
        return nbytes / (self.cost["elementwise"] * self._of(self.machine.gpu_gb_per_s) * 1e9)

    def _flops_per_s(self, kernel: str) -> float:
        """What a kind of kernel reaches of the peak.

        Tensor cores of consumer devices accumulate in float32 at half rate, so that kernels come closer to it.
        """
        name = f"{kernel}_consumer" if str(self.machine.gpu).startswith("RTX") else kernel
        return self.cost[name] * self._peak

    @property
    def _peak(self) -> float:
        return self._of(self.machine.gpu_tflops) * 1e12 * self._together

    @property
    def _stream(self) -> float:
        return self.cost["gpu_stream"] * self._of(self.machine.gpu_gb_per_s) * 1e9 * self._together

    @property
    def _together(self) -> float:
        """GPUs that work at the same time: all, but one in training, where each has layers of its own."""
        return 1.0 if self.workload.trains else self._of(self.machine.gpus)

    def _of(self, constant: float | None) -> float:
        if constant is None:
            raise ValueError(f"{self.machine.name} has no GPU")
        return constant
