"""One cell with a GPU, as its task graph sees it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ktbench.sim.calibration import Calibration
from ktbench.sim.host_kernels import HostBase, HostDecode, HostPrefill
from ktbench.sim.placement import Coverage
from ktbench.sim.sizes import Sizes, sizes_of
from ktbench.spec.machine import MachineSpec
from ktbench.spec.run_spec import RunSpec

_A100_GHZ = 1.41  # the clock at which `kernel_us` was fitted
# Of a layer's kernels: gate, up, activation, product, down, addition.
_SHARED_KERNELS = 6


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """A part of a layer on the device: seconds of its work, and the kernels it takes."""

    work_s: float
    kernels: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    """The device of a machine under a calibration.

    `graph` says whether a step is one CUDA graph, `base` whether modules are PyTorch's own, as in Fiddler's scheme.
    """

    machine: MachineSpec
    cost: Calibration
    sizes: Sizes
    graph: bool
    base: bool

    def seconds(self, part: Part) -> float:
        """A part's work and the least that its kernels take."""
        if self.base:
            return part.work_s + part.kernels * self.cost["base_launch_us"] * 1e-6
        least_us = self.cost["kernel_us"] * _A100_GHZ / self._of(self.machine.gpu_ghz)
        return part.work_s + part.kernels * least_us * 1e-6

    def launch_s(self, part: Part) -> float:
        """What launching a part's kernels takes: nothing where a graph holds them; in base it is in their time."""
        return 0.0 if self.graph or self.base else part.kernels * self.cost["launch_us"] * 1e-6

    @property
    def layer_kernels(self) -> int:
        """Kernels of a layer, those of the shared expert counted in."""
        name = ("base_kernels_" if self.base else "kernels_") + ("latent" if self.sizes.latent else "grouped")
        return round(self.cost[name])

    def attend(self, tokens: int, batch: int, context: int) -> Part:
        """Attention, norms and router: of `tokens` new ones a sequence, each of `batch` at a depth of `context`."""
        sizes = self.sizes
        shared = _SHARED_KERNELS if sizes.shared_params else 0
        params = sizes.attention_params + sizes.fixed_params
        read = sizes.attention_bytes(context * batch) + sizes.gate_bytes
        pairs = tokens * context + (tokens**2 / 2 if sizes.latent else tokens**2)
        return Part(
            work_s=self._dense(params, read, tokens * batch)
            + batch * pairs * sizes.score_flops / (self._attention * self._peak)
            + self._moved(tokens * batch),
            kernels=self.layer_kernels - shared,
        )

    def shared(self, tokens: int) -> Part:
        """The shared expert."""
        params = self.sizes.shared_params
        kernels = _SHARED_KERNELS if params else 0
        return Part(work_s=self._dense(params, params * self.sizes.bytes_per_param, tokens), kernels=kernels)

    def dense(self, tokens: int) -> Part:
        """The feed-forward part of a layer without experts."""
        params = self.sizes.dense_params
        return Part(work_s=self._dense(params, params * self.sizes.bytes_per_param, tokens), kernels=_SHARED_KERNELS)

    def head(self, batch: int) -> Part:
        """The output head, of the last token of each sequence, in bf16."""
        params = self.sizes.head_params
        return Part(work_s=self._dense(params, 2.0 * params, batch), kernels=2)

    def experts(self, count: float, tokens: float) -> Part:
        """Routed experts that live at the device: `count` of them for `tokens` selections."""
        sizes = self.sizes
        params = sizes.expert_flops / 2
        read = count * sizes.expert_bytes
        flops = tokens * sizes.expert_flops / (self._gemm * self._peak)
        return Part(work_s=max(read / self._stream, flops) if params else 0.0, kernels=_SHARED_KERNELS)

    def _dense(self, params: float, read_bytes: float, tokens: int) -> float:
        """Products of `tokens` rows: the weights are read, or their arithmetic takes longer."""
        flops = 2.0 * params * tokens
        return max(read_bytes / self._stream, flops / (self._gemm * self._peak) if tokens > 1 else 0.0)

    def _moved(self, tokens: int) -> float:
        rate = self.cost["elementwise"] * self._of(self.machine.gpu_gb_per_s) * 1e9
        return tokens * self.sizes.elementwise_bytes / rate if tokens > 1 else 0.0

    @property
    def _gemm(self) -> float:
        return self.cost["gemm_consumer" if self._is_consumer else "gemm"]

    @property
    def _attention(self) -> float:
        return self.cost["attention_consumer" if self._is_consumer else "attention"]

    @property
    def _is_consumer(self) -> bool:
        """Their tensor cores add up in float32 at half rate, so that kernels come closer to the peak."""
        return str(self.machine.gpu).startswith("RTX")

    @property
    def _peak(self) -> float:
        return self._of(self.machine.gpu_tflops) * 1e12 * self._of(self.machine.gpus)

    @property
    def _stream(self) -> float:
        return self.cost["gpu_stream"] * self._of(self.machine.gpu_gb_per_s) * 1e9 * self._of(self.machine.gpus)

    def _of(self, constant: float | None) -> float:
        if constant is None:
            raise ValueError(f"{self.machine.name} has no GPU")
        return constant


# Their modules launch the shared expert before a blocking copy, and beside the experts only while a graph is captured;
# others copy first.
_BLOCKING_FAMILIES = ("deepseek_v2", "deepseek_v3")


@dataclass(frozen=True, kw_only=True, slots=True)
class StepModel:
    """One cell as the graph sees it."""

    spec: RunSpec
    machine: MachineSpec
    cost: Calibration
    sizes: Sizes
    gpu: Gpu

    @property
    def prefill(self) -> bool:
        """Whether a step is a forward pass over prompts."""
        return self.spec.workload.phase == "prefill"

    @property
    def base(self) -> bool:
        """Whether experts run one after the other through PyTorch."""
        return not self.spec.engine.fused

    @property
    def overlaps_shared(self) -> bool:
        """Whether the shared expert runs beside the routed ones."""
        if self.base:
            return False
        blocking = self.sizes.family in _BLOCKING_FAMILIES
        return not blocking or self.gpu.graph


def step_model(spec: RunSpec, cost: Calibration) -> StepModel:
    """The model behind a cell. Raises ValueError for a cell that is not on a machine with a GPU."""
    machine = spec.machine
    if machine is None or machine.gpu is None:
        raise ValueError("a step with a GPU needs a machine that has one")
    sizes = sizes_of(spec)
    # A graph holds the decode step alone.
    graph = spec.engine.cuda_graph and spec.workload.phase == "decode"
    gpu = Gpu(machine=machine, cost=cost, sizes=sizes, graph=graph, base=not spec.engine.fused)
    return StepModel(spec=spec, machine=machine, cost=cost, sizes=sizes, gpu=gpu)


def call_s(model: StepModel, loads: NDArray[np.int64], placed: Coverage) -> float:
    """Seconds of one call of a layer's experts, `loads` [E] being the tokens of each."""
    spec, machine, cost, sizes = model.spec, model.machine, model.cost, model.sizes
    active = loads[loads > 0].astype(float)
    if model.base:
        prefill = spec.workload.phase == "prefill"
        return HostBase(machine=machine, cost=cost, sizes=sizes).seconds(active, prefill=prefill)
    if spec.workload.phase != "decode":
        many = HostPrefill(spec=spec, machine=machine, cost=cost, sizes=sizes)
        return many.seconds(loads) * (1.0 - placed.device)
    return HostDecode(spec=spec, machine=machine, cost=cost, sizes=sizes).seconds(active, placed)
