"""Routed experts of KTransformers on the host: its fused kernels in prefill and decode, and PyTorch in base.

KTransformers, section 3.2, and its artifact's operators/amx/moe.hpp: every expert's matrices are sliced over the
domains, phases are separated by barriers, and within one each thread takes tasks of 128 output columns; packing is one
task for each expert.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import numpy as np
from numpy.typing import NDArray

from ktbench.sim.calibration import Calibration
from ktbench.sim.cores import makespan_s, soft_maximum
from ktbench.sim.routing import ALL_ON_HOST, Coverage
from ktbench.sim.workloads import workload_of
from ktbench.spec.machine import MachineSpec
from ktbench.spec.run_spec import RunSpec
from ktbench.spec.step.work import BF16_BYTES, F32_BYTES, Sizes
from ktbench.spec.weights import weight_bits

TASK_COLUMNS = 128  # output columns of a task (kernels/core/layout.h)
_AMX_ROWS = 32
# Of an expert's products those of gate and up, and those of down.
_GATE_UP, _DOWN = 2 / 3, 1 / 3
# A write to memory reads the line first.
_WRITE = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class HostKernel:
    """One layer's routed experts on the cores of a machine."""

    spec: RunSpec
    machine: MachineSpec
    cost: Calibration
    sizes: Sizes

    def seconds(self, loads: NDArray[np.int64], covered: Coverage = ALL_ON_HOST) -> float:
        """One call, `loads` [E] being the tokens of each expert, of which the device serves a share."""
        raise NotImplementedError

    @property
    def threads_are_bound(self) -> bool:
        """Whether threads stay with the memory they read."""
        return self.spec.engine.numa or self.machine.domains == 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Times:
    """[E] seconds of a domain for each expert: all in all, and for its arithmetic alone."""

    expert_s: NDArray[np.float64]
    arithmetic_s: NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class TorchExperts(HostKernel):
    """Fiddler's scheme, the paper's baseline: one expert after the other through PyTorch, at one domain's bandwidth."""

    def seconds(self, loads: NDArray[np.int64], covered: Coverage = ALL_ON_HOST) -> float:
        """See `HostKernel`; placement has no effect.

        In prefill numbers of rows are new to oneDNN, and activations are gathered and added up.
        """
        active, prefill = loads[loads > 0].astype(np.float64), workload_of(self.spec).many_tokens
        if not len(active):
            return 0.0
        read = self.sizes.expert_bytes / (self.cost["base_stream"] * self.machine.read_gb_per_s * 1e9)
        fixed = (self.cost["base_expert_ms"] + (self.cost["base_new_ms"] if prefill else 0.0)) * 1e-3
        total = len(active) * (read + fixed) + float(active.sum()) * self.sizes.expert_flops / self._peak
        if prefill:
            total += (
                float(active.sum()) * self.sizes.hidden * BF16_BYTES * 1e-6 * self.cost["base_moved_ms_per_mb"] * 1e-3
            )
        return total

    @property
    def _peak(self) -> float:
        """PyTorch uses AMX where there is any."""
        amx = self.machine.amx_tflops
        vector = self.cost["base_vector_peak"] * self.machine.vector_tflops
        return (self.cost["base_peak"] * amx if amx else vector) * 1e12


@dataclass(frozen=True, kw_only=True, slots=True)
class PrefillExperts(HostKernel):
    """The fused kernel for many tokens, on all domains."""

    def seconds(self, loads: NDArray[np.int64], covered: Coverage = ALL_ON_HOST) -> float:
        active = loads[loads > 0].astype(np.float64)
        if not len(active):
            return 0.0
        tokens = float(active.sum()) / self.sizes.top_k
        fixed = 0.0 if workload_of(self.spec).single_layer else self.cost["prefill_call_ms"] * 1e-3
        around = self._select_s(tokens) + self._tokens(active, tokens) + self._packing(active)
        apart = 1.0 if self.threads_are_bound else self.cost["apart"]
        return (fixed + around + self._products(active)) * apart * (1.0 - covered.device) + self._lora_s(active, 1)

    def back_s(self, loads: NDArray[np.int64], *, inputs: bool) -> float:
        """The backward pass of one call: gate and up again unless they were kept, then transposed products.

        These run on matrices that were transposed when they were loaded, by the same kernels. Gradients are gathered,
        packed and added up as inputs and outputs are. (kt-sft, operators/amx/sft_moe.hpp)
        """
        active = loads[loads > 0].astype(np.float64)
        if not len(active):
            return 0.0
        tokens, times = float(active.sum()) / self.sizes.top_k, self.times(active)
        products = self._gate_up_s(times, int(bool(self.spec.workload.recompute)) + inputs) + self._down_s(times)
        around = self._select_s(tokens) + 2 * (self._tokens(active, tokens) + self._packing(active))
        apart = 1.0 if self.threads_are_bound else self.cost["apart"]
        return (self.cost["prefill_call_ms"] * 1e-3 + around + products) * apart + self._lora_s(active, 2)

    def _lora_s(self, active: NDArray[np.float64], products: int) -> float:
        """LoRA of the experts: its factors are read and multiplied so often, in float32 on the vector units."""
        numbers, machine = self.spec.lora.expert, self.machine
        flops_per_s = self.cost["vector_peak"] * machine.vector_tflops * 1e12 / 2
        reading_s = len(active) * numbers * F32_BYTES / (machine.read_gb_per_s * 1e9)
        multiplying_s = 2 * numbers * float(active.sum()) / flops_per_s
        return products * (reading_s + multiplying_s) / machine.domains

    def _select_s(self, tokens: float) -> float:
        """One thread counts the tokens of each expert."""
        return tokens * self.sizes.top_k * self.cost["select_ns"] * 1e-9

    def _products(self, active: NDArray[np.float64]) -> float:
        """Gate and up, then down, each with a barrier at its end."""
        times = self.times(active)
        return self._gate_up_s(times) + self._down_s(times)

    def _gate_up_s(self, times: Times, often: int = 1) -> float:
        own = self.sizes.expert_ffn / self.machine.domains
        return often * self._phase(times, _GATE_UP, 2 * ceil(own / TASK_COLUMNS))

    def _down_s(self, times: Times) -> float:
        return self._phase(times, _DOWN, ceil(self.sizes.hidden / TASK_COLUMNS))

    def _phase(self, times: Times, part: float, tasks: int) -> float:
        """Seconds of a phase that is so much of all products, each expert's in so many tasks.

        With a queue the last tasks have the memory to themselves: nothing is lost but half of what a task is long. No
        task is done before one core has done its arithmetic.
        """
        cores = self.machine.cores
        if not self.spec.engine.dynamic:
            return self._makespan(times.expert_s * part * cores, tasks)
        even = float(times.expert_s.sum()) + float(times.expert_s.max()) / tasks / 2
        return part * max(even, float(times.arithmetic_s.max()) * cores / tasks)

    def times(self, rows: NDArray[np.float64], read_s: float | None = None) -> Times:
        """Seconds of a domain for the matrix products of experts with so many rows.

        Reading an expert takes `read_s` seconds; None for what it takes each of the kernels in prefill.
        """
        engine = self.spec.engine
        if not engine.amx:
            return self._vector(rows, read_s)
        amx = self._amx(rows, read_s)
        if not engine.avx512:
            return amx
        vector, many = self._vector(rows, read_s), rows >= engine.first_on_amx
        return Times(
            expert_s=np.where(many, amx.expert_s, vector.expert_s),
            arithmetic_s=np.where(many, amx.arithmetic_s, vector.arithmetic_s),
        )

    def _amx(self, rows: NDArray[np.float64], read_s: float | None) -> Times:
        """Memory and arithmetic overlap in part; rows go through 32 at a time."""
        cost, machine = self.cost, self.machine
        share = cost["amx_stream"] if machine.domains > 1 else cost["amx_stream_one"]
        read = self._read_s(share) if read_s is None else read_s
        peak = self._rate(machine.amx_tflops, machine.amx_int8_tops) * cost["amx_peak"]
        if self.spec.dtype != "bf16":
            peak *= cost[f"int{weight_bits(self.spec.precision)}_arithmetic"]
        compute = np.ceil(rows / _AMX_ROWS) * _AMX_ROWS * self._own_flops / peak
        return Times(expert_s=soft_maximum(read, compute, cost["amx_overlap"]), arithmetic_s=compute)

    def _vector(self, rows: NDArray[np.float64], read_s: float | None) -> Times:
        cost, machine = self.cost, self.machine
        read = self._read_s(cost["vector_stream"]) if read_s is None else read_s
        peak = self._rate(machine.vector_tflops, machine.vector_int8_tops) * cost["vector_peak"]
        compute = rows * self._own_flops / (peak if self.spec.dtype == "bf16" else peak * cost["quantised_vector"])
        return Times(expert_s=np.maximum(read, cost["vector_serial"] * read + compute), arithmetic_s=compute)

    def _rate(self, bf16_tflops: float | None, int8_tops: float | None) -> float:
        """Operations a second; int4 is widened to int8. Raises ValueError where the machine has no such units."""
        rate = bf16_tflops if self.spec.dtype == "bf16" else int8_tops
        if rate is None:
            raise ValueError(f"{self.machine.name} has no AMX")
        return rate * 1e12

    @property
    def _whole(self) -> float:
        """Weights are read faster in a whole system than in the microbenchmark of a layer."""
        return 1.0 if workload_of(self.spec).single_layer else self.cost["prefill_stream"]

    def _read_s(self, share: float) -> float:
        """Reading an expert's part of a domain at a share of its bandwidth, which cannot be above all of it."""
        own_bytes = self.sizes.expert_bytes / self.machine.domains
        return own_bytes / (min(share * self._whole, 1.0) * self.machine.read_gb_per_s * 1e9)

    @property
    def _own_flops(self) -> float:
        return self.sizes.expert_flops / self.machine.domains

    def _tokens(self, active: NDArray[np.float64], tokens: float) -> float:
        """Gathering inputs, adding up outputs by gate weight, and adding up the domains: shared evenly by token."""
        hidden, picks = self.sizes.hidden, float(active.sum())
        gather = tokens * hidden * BF16_BYTES + picks * hidden * BF16_BYTES * _WRITE
        weigh = picks * hidden * BF16_BYTES + tokens * hidden * F32_BYTES * _WRITE
        merge = 0.0
        if self.machine.domains > 1:
            far = tokens * hidden * F32_BYTES / (self.machine.remote_gb_per_s * 1e9)
            merge = far + tokens * hidden * (F32_BYTES + BF16_BYTES * _WRITE) / (
                self.machine.domains * self.moved_bytes_per_s
            )
        return (gather + weigh) / self.moved_bytes_per_s + merge

    def _packing(self, active: NDArray[np.float64]) -> float:
        """Inputs before gate and up, activations before down: each expert's by one thread; SwiGLU in between."""
        own = self.sizes.expert_ffn / self.machine.domains
        swiglu = active * own * BF16_BYTES * 3
        return (
            self._pack(active * self.sizes.hidden * BF16_BYTES * (1 + _WRITE))
            + self._makespan(swiglu / self.moved_bytes_per_s * self.machine.cores, ceil(own / TASK_COLUMNS))
            + self._pack(active * own * BF16_BYTES * (1 + _WRITE))
        )

    def _pack(self, moved: NDArray[np.float64]) -> float:
        """All cores together are held by the memory, a core alone by itself."""
        alone = self._makespan(moved / (self.cost["thread_gb_per_s"] * 1e9), 1)
        return max(float(moved.sum()) / self.moved_bytes_per_s, alone)

    def _makespan(self, thread_s: NDArray[np.float64], tasks: int) -> float:
        return makespan_s(thread_s, tasks, self.machine.cores, dynamic=self.spec.engine.dynamic)

    @property
    def moved_bytes_per_s(self) -> float:
        """What copies by all cores of a domain reach."""
        return self.cost["move"] * self.machine.read_gb_per_s * 1e9


@dataclass(frozen=True, kw_only=True, slots=True)
class DecodeExperts(HostKernel):
    """The fused kernel for a few tokens, on all domains: weights are read, and a call has a fixed cost."""

    def seconds(self, loads: NDArray[np.int64], covered: Coverage = ALL_ON_HOST) -> float:
        """See `HostKernel`. What the device serves is not read here, and where it serves all there is no call."""
        active = loads[loads > 0].astype(np.float64)
        if not len(active):
            return 0.0
        calls, each = self._calls(active)
        busy = self._expert_s(each) * (1.0 if self.spec.engine.dynamic else self.cost["decode_static"])
        call_s = (self.cost["call_ms"] + (0.0 if self.threads_are_bound else self.cost["apart_ms"])) * 1e-3
        return float(busy * (1.0 - covered.device) + calls * call_s * covered.any_on_host)

    def _calls(self, active: NDArray[np.float64]) -> tuple[int, NDArray[np.float64]]:
        """How many calls run the active experts, and the tokens of each expert that is read.

        Where tokens are so few that each is a call of its own, each reads all the experts that it selects.
        """
        tokens = self.spec.workload.batch
        if tokens < self.cost["alone_below"]:
            return tokens, np.ones(int(active.sum()))
        return 1, active

    @property
    def _read_bytes_per_s(self) -> float:
        """Unbound threads read half from their own domain and half from another: the harmonic mean."""
        near, far = self.machine.read_gb_per_s, self.machine.remote_gb_per_s
        each = near if self.threads_are_bound else 2 / (1 / near + 1 / far)
        return self.cost["decode_stream"] * self.machine.domains * each * 1e9

    def _expert_s(self, loads: NDArray[np.float64]) -> float:
        """All experts: their weights are read, and arithmetic of more than one token overlaps with that in part.

        AMX alone takes longer at one token than AVX-512, which the hybrid uses there (section 3.2).
        """
        engine, read_s = self.spec.engine, self.sizes.expert_bytes / self._read_bytes_per_s
        slower = self.cost["amx_one_token"] if engine.amx and not engine.avx512 else 1.0
        if loads.max() <= 1:
            return len(loads) * read_s * slower
        many = PrefillExperts(spec=self.spec, machine=self.machine, cost=self.cost, sizes=self.sizes)
        return float(np.maximum(read_s * slower, many.times(loads, read_s).expert_s).sum())
