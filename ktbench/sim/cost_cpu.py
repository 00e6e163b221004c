"""Costs of a step where both roles run on CPU cores: our fused operator, PyTorch, and our packed dense layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf

import numpy as np
from numpy.typing import NDArray

from ktbench.sim.calibration import Calibration
from ktbench.sim.cores import AMX, VECTOR, CoreKernels, Team, makespan_s
from ktbench.sim.graph import Graph, apply_contention
from ktbench.sim.routing import counts, selections
from ktbench.sim.workloads import (
    CostModel,
    DeviceTask,
    Pass,
    SharedOrder,
    build_graph,
    head_rows,
    kept_experts,
    machine_of,
    wants_inputs,
    workload_of,
)
from ktbench.spec.engine import PAPER_AMX_MIN_TOKENS
from ktbench.spec.machine import MachineSpec, Vector
from ktbench.spec.peers import OURS
from ktbench.spec.run_spec import RunSpec
from ktbench.spec.step.work import ADAMW_BYTES, BF16_BYTES, F32_BYTES, Sizes, sizes_of
from ktbench.spec.timeline import Resource
from ktbench.spec.weights import Dtype, Precision, expert_bytes

# Into about how many tasks the fused operator divides an expert (kernels/moe/call.cpp).
TASKS = 32
# Products with transposed matrices multiply in float32 (kernels/training/transposed.h), for which AVX2 has no less than
# for bf16.
_F32_OVER_BF16: Mapping[Vector, float] = {"avx512": 0.5, "avx2": 1.0}
# Of an expert's products those of gate and up, and those of down.
_GATE_UP, _DOWN = 2 / 3, 1 / 3


def cpu_graph(spec: RunSpec, calibration: Calibration) -> Graph:
    """The tasks of one step, on resources `host` and `device`; deferral must be a number.

    With shared roles they run one after the other; separate ones read the same memory, and a task takes longer while
    the other role works. Raises ValueError in one line for what is not simulated on cores.
    """
    policy = spec.engine.placement.policy
    if spec.system != OURS:
        raise ValueError(f"system={spec.system}: without a GPU only system=ktbench is simulated")
    if policy != "host":
        raise ValueError(f"engine.placement.policy={policy}: without a GPU only policy=host is simulated")

    def graph(host: Team, device: Team) -> Graph:
        return build_graph(CpuCosts(spec=spec, calibration=calibration, host_team=host, device_team=device))

    teams = teams_of(spec, calibration)
    alone = graph(*teams)
    return alone if spec.engine.roles == "shared" else apply_contention(alone, graph(*_contended(spec, *teams)))


def teams_of(spec: RunSpec, calibration: Calibration) -> tuple[Team, Team]:
    """The cores of the host role and of the device role. Raises ValueError where there are too few for them."""
    machine = machine_of(spec)
    device, host = role_cores(spec)
    spread = _spread_bytes_per_s(machine)
    bound = machine.domains * machine.read_gb_per_s * 1e9 if spec.engine.numa else spread
    return _team(machine, host, bound, calibration), _team(machine, device, spread, calibration)


def role_cores(spec: RunSpec) -> tuple[int, int]:
    """Cores of the device role and of the host role; the same where they share them.

    Raises ValueError where the machine has too few.
    """
    machine, engine = machine_of(spec), spec.engine
    there = machine.domains * machine.cores
    if engine.threads is not None and engine.threads > there:
        raise ValueError(f"engine.threads={engine.threads}: allowed are 1 to {there}, the cores of {machine.name}")
    used = engine.threads or there
    if engine.roles == "shared":
        return used, used
    device = engine.device_threads or used // 2
    if not 1 <= device < used:
        raise ValueError(f"engine.roles=split: needs a core for each role, {machine.name} gives them {used}")
    return device, used - device


def _contended(spec: RunSpec, host: Team, device: Team) -> tuple[Team, Team]:
    """Both teams while the other one reads as well: the bandwidth is divided as they would use it alone."""
    wanted = sum(team.read_bytes_per_s for team in (host, device))
    share = min(1.0, _spread_bytes_per_s(machine_of(spec)) / wanted)
    slower = [replace(team, read_bytes_per_s=share * team.read_bytes_per_s) for team in (host, device)]
    return slower[0], slower[1]


def _team(machine: MachineSpec, cores: int, bytes_per_s: float, calibration: Calibration) -> Team:
    """Some of the cores: their share of the peaks; what they read is bounded by their own limit as well."""
    share = cores / (machine.domains * machine.cores)
    own = max(cores * calibration["core_read_gb_per_s"] * 1e9, share * bytes_per_s)
    tera: dict[tuple[str, Dtype], float | None] = {
        (VECTOR, "bf16"): machine.vector_tflops,
        (VECTOR, "int8"): machine.vector_int8_tops,
        (AMX, "bf16"): machine.amx_tflops,
        (AMX, "int8"): machine.amx_int8_tops,
    }
    peaks = {isa: share * machine.domains * peak * 1e12 for isa, peak in tera.items() if peak}
    f32 = _F32_OVER_BF16[machine.vector] * peaks[VECTOR, "bf16"]
    return Team(cores=cores, read_bytes_per_s=min(bytes_per_s, own), peaks=peaks, f32_flops_per_s=f32)


def _spread_bytes_per_s(machine: MachineSpec) -> float:
    """All domains reading memory that is interleaved over them: the harmonic mean of local and remote reads."""
    domains = machine.domains
    per_gb = (1 / machine.read_gb_per_s + (domains - 1) / machine.remote_gb_per_s) / domains
    return domains / per_gb * 1e9


@dataclass(frozen=True, kw_only=True, slots=True)
class CpuCosts(CostModel):
    """`CostModel` of our engine on cores: the device role runs Transformers' modules, or with +l packed layers."""

    spec: RunSpec
    calibration: Calibration
    host_team: Team
    device_team: Team
    _calls: dict[tuple[Pass, int, int, bool], float] = field(default_factory=dict, init=False, compare=False)

    @property
    def host(self) -> Resource:
        """Base submits nothing: all of it runs on the device role's cores."""
        return "host" if self.spec.engine.fused else "device"

    def shared_order(self, work: Pass) -> SharedOrder:
        """On shared cores, and in base, one part runs after the other."""
        return "beside" if self.spec.engine.roles == "split" and self.spec.engine.fused else "after"

    def attention(self, work: Pass) -> DeviceTask:
        """Projections and router, norms and the like, and attention itself."""
        shape, name = self.spec.model.shape, "lean_layer_us" if self._replays else "torch_layer_us"
        router = shape.experts * shape.hidden
        products = self._linear_s(self._sizes.attention_params, work.rows) + self._linear_s(router, work.rows)
        around = self._latents_s(work) + self._score_s(work) + self._cache_s(work) + self._elementwise_s(work)
        adapted = work.adapted * self._device.adapted_s(self.spec.lora.attention, 1, work.rows)
        seconds = self.calibration[name] * 1e-6 + products + around + adapted
        return DeviceTask(name="attention", kind="attention", seconds=seconds)

    def dense(self, work: Pass) -> DeviceTask:
        return DeviceTask(name="dense", kind="other", seconds=self._linear_s(self._sizes.dense_params, work.rows))

    def shared(self, work: Pass) -> DeviceTask | None:
        params = self._sizes.shared_params
        return DeviceTask(name="shared", kind="shared", seconds=self._linear_s(params, work.rows)) if params else None

    def head(self, work: Pass) -> DeviceTask:
        seconds = self._linear_s(self._sizes.head_params, head_rows(self.spec, work))
        return DeviceTask(name="head", kind="other", seconds=seconds)

    def loss(self, work: Pass) -> DeviceTask:
        seconds = work.rows * self._sizes.logits_bytes / self.device_team.read_bytes_per_s
        return DeviceTask(name="loss", kind="other", seconds=seconds)

    def optimiser_s(self, role: Resource) -> float:
        shape, lora = self.spec.model.shape, self.spec.lora
        on_host = role == "host"
        numbers = shape.moe_layers * shape.experts * lora.expert if on_host else shape.layers * lora.attention
        return numbers * ADAMW_BYTES / self.device_team.read_bytes_per_s

    def routed_s(self, work: Pass, layer: int, first: int, last: int) -> float:
        """Mean over the layers drawn; every layer takes as long, but where the backward pass ends."""
        key = (work, first, last, not work.back or wants_inputs(self.spec, layer))
        if key not in self._calls:
            self._calls[key] = self._routed_s(work.rows, first, last, self._call_of(work, layer))
        return self._calls[key]

    def layer_alone_s(self) -> float:
        call_s = self._fused_s if self.spec.engine.fused else self._modules_s
        return self._routed_s(self.spec.workload.batch, 0, kept_experts(self.spec), call_s)

    def _routed_s(self, rows: int, first: int, last: int, call_s: Callable[[NDArray[np.int64]], float]) -> float:
        if first == last:
            return 0.0
        calls = [call_s(counts(ids[:, first:last])) for ids in selections(self.spec, self.calibration, rows)]
        return sum(calls) / len(calls)

    def _call_of(self, work: Pass, layer: int) -> Callable[[NDArray[np.int64]], float]:
        if work.back:
            return partial(self._back_s, work=work, inputs=wants_inputs(self.spec, layer))
        if workload_of(self.spec).trains:
            return partial(self._forth_s, work=work)
        return self._fused_s if self.spec.engine.fused else self._modules_s

    def _modules_s(self, tokens: NDArray[np.int64]) -> float:
        """One after the other through Transformers' module (its loop over the experts that are hit)."""
        fixed_ms = self.calibration["torch_call_ms"] + len(tokens) * self.calibration["torch_expert_ms"]
        params, nbytes = self._expert("bf16")
        return fixed_ms * 1e-3 + float(self._device.torch_s(params, nbytes, tokens).sum())

    def _fused_s(self, tokens: NDArray[np.int64]) -> float:
        """The tasks of all experts, assigned to threads dynamically with +d."""
        team, precision = self.host_team, self.spec.precision
        params, nbytes = self._expert(precision)
        first_on_amx = self.spec.engine.first_on_amx
        of_one_thread = team.cores * self._host.packed_s(precision, params, nbytes, tokens, first_on_amx)
        makespan = makespan_s(of_one_thread, TASKS, team.cores, dynamic=self.spec.engine.dynamic)
        return self.calibration["fused_call_us"] * 1e-6 + makespan

    def _forth_s(self, tokens: NDArray[np.int64], work: Pass) -> float:
        """The fused operator; two calls where LoRA is added to products, or they are kept."""
        seconds = self._fused_s(tokens)
        if not self.spec.lora.expert and self.spec.workload.recompute:
            return seconds
        shape = self.spec.model.shape
        moved = self._written_s(tokens, 3 * shape.expert_ffn + shape.hidden)
        return seconds + self.calibration["fused_call_us"] * 1e-6 + moved + self._adapters_s(tokens, work)

    def _back_s(self, tokens: NDArray[np.int64], work: Pass, *, inputs: bool) -> float:
        """Gate and up again unless they were kept, then products with transposed matrices (training/function.py)."""
        team, shape, again = self.host_team, self.spec.model.shape, bool(self.spec.workload.recompute)
        precision, first_on_amx = self.spec.precision, self.spec.engine.first_on_amx
        params, nbytes = self._expert(precision)
        formed = self._host.packed_s(precision, params, nbytes, tokens, first_on_amx)
        transposed = self._host.transposed_s(precision, params, nbytes, tokens)
        shares = (again * _GATE_UP, 1.0 if inputs else _DOWN)
        of_one_thread = team.cores * (shares[0] * formed + shares[1] * transposed)
        makespan = makespan_s(of_one_thread, TASKS, team.cores, dynamic=self.spec.engine.dynamic)
        calls_s = (again + 1 + inputs) * self.calibration["fused_call_us"] * 1e-6
        moved = self._written_s(tokens, 6 * shape.expert_ffn + inputs * shape.hidden)
        return calls_s + makespan + moved + self._adapters_s(tokens, work)

    def _written_s(self, tokens: NDArray[np.int64], width: int) -> float:
        """Activations of so many numbers for each pair of token and expert, in float32, written and read."""
        return 2 * F32_BYTES * width * float(tokens.sum()) / self.host_team.read_bytes_per_s

    def _adapters_s(self, tokens: NDArray[np.int64], work: Pass) -> float:
        """LoRA of the experts, one after the other through PyTorch."""
        if not self.spec.lora.expert:
            return 0.0
        fixed_s = work.adapted * len(tokens) * self.calibration["torch_expert_ms"] * 1e-3
        return fixed_s + work.adapted * self._device.adapted_s(self.spec.lora.expert, len(tokens), int(tokens.sum()))

    def _expert(self, precision: Precision) -> tuple[int, int]:
        """Weights of a routed expert, and their bytes."""
        shape = self.spec.model.shape
        return shape.expert_params, expert_bytes(shape, precision)

    @property
    def _sizes(self) -> Sizes:
        return sizes_of(self.spec)

    @property
    def _host(self) -> CoreKernels:
        return CoreKernels(calibration=self.calibration, team=self.host_team)

    @property
    def _device(self) -> CoreKernels:
        return CoreKernels(calibration=self.calibration, team=self.device_team)

    @property
    def _replays(self) -> bool:
        """Whether a step is replayed without the modelling code."""
        return self.spec.engine.packed_dense and workload_of(self.spec).few_tokens

    def _linear_s(self, params: int, rows: int) -> float:
        """One linear layer of the device role; 0 for one without weights."""
        if not params:
            return 0.0
        spec, counted = self.spec, np.array([rows])
        if not spec.engine.packed_dense:
            return float(self._device.torch_s(params, BF16_BYTES * params, counted)[0])
        shape, precision = spec.model.shape, spec.device_precision
        nbytes = params * expert_bytes(shape, precision) / shape.expert_params
        # Linear layers choose their kernels by what is granted, whatever the features of the experts.
        first_on_amx = PAPER_AMX_MIN_TOKENS if self.device_team.torch_unit == AMX else inf
        return float(self._device.packed_s(precision, params, nbytes, counted, first_on_amx)[0])

    def _latents_s(self, work: Pass) -> float:
        """The up-projection of latents: Transformers expands those of the context, a replayed step those of none."""
        params = self._sizes.fixed_params
        if not params:
            return 0.0
        if self._absorbs(work):
            counted = np.array([work.rows])
            return float(self._device.packed_s("bf16", params, BF16_BYTES * params, counted, inf)[0])
        expanded = np.array([work.rows + work.batch * work.context])
        return float(self._device.torch_s(params, BF16_BYTES * params, expanded)[0])

    def _absorbs(self, work: Pass) -> bool:
        return self._sizes.latent and self._replays and work.tokens == 1

    def _score_s(self, work: Pass) -> float:
        """Scores and their products with values, in a pass of several tokens; the masked half is computed as well."""
        if work.tokens == 1:
            return 0.0
        flops = work.rows * (work.context + work.tokens) * self._sizes.score_flops
        unit = self.device_team.torch_unit
        return work.scores * flops / (self.device_team.peak(unit, "bf16") * self.calibration[f"attention_{unit}_peak"])

    def _cache_s(self, work: Pass) -> float:
        """Keys and values of the context, in a decode step. Transformers copies and repeats them for its heads."""
        if work.tokens > 1:
            return 0.0
        positions, team, cost = work.batch * work.context, self.device_team, self.calibration
        nbytes = positions * self._sizes.expanded_key_bytes
        if self._absorbs(work):
            flops_per_s = team.peak(VECTOR, "bf16") * cost["attention_vector_peak"]
            return positions * self._sizes.absorbed_flops / flops_per_s
        if self._replays:
            return nbytes / (team.read_bytes_per_s * cost["lean_cache_read"])
        return nbytes * 1e-6 * cost["torch_cache_ms_per_mb"] * 1e-3 / team.cores

    def _elementwise_s(self, work: Pass) -> float:
        """Norms, rotations, additions, and the memory that is allocated for each of them."""
        if work.tokens == 1:
            return 0.0
        moved_mb = work.rows * self.spec.model.shape.hidden * BF16_BYTES * 1e-6
        name = "lean_elementwise_ms_per_mb" if self.spec.engine.packed_dense else "torch_elementwise_ms_per_mb"
        return work.moved * moved_mb * self.calibration[name] * 1e-3 / self.device_team.cores
