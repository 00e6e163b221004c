"""What the device role costs on cores: attention, the dense layers beside the experts, the output head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ktbench.sim.calibration import Calibration
from ktbench.sim.routing import Selections, counts
from ktbench.sim.schedule import dynamic_s, static_s
from ktbench.spec.engine import EngineSpec
from ktbench.spec.machine import MachineSpec
from ktbench.spec.run_spec import Dtype, RunSpec
from ktbench.spec.shape import MoEShape, text_config
from ktbench.spec.weights import Precision, expert_bytes

Isa = tuple[str, Dtype]
VECTOR, AMX = "vector", "amx"


@dataclass(frozen=True, kw_only=True, slots=True)
class Team:
    """`cores` that work together: read bandwidth in bytes/s, arithmetic peaks in operations/s by unit and dtype."""

    cores: int
    read_bytes_per_s: float
    peaks: Mapping[Isa, float]

    @property
    def torch_unit(self) -> str:
        """The unit that PyTorch (oneDNN) multiplies bf16 on: AMX where there is any."""
        return AMX if (AMX, "bf16") in self.peaks else VECTOR

    def reading(self, bytes_per_s: float) -> Team:
        """The same cores at another read bandwidth."""
        return replace(self, read_bytes_per_s=bytes_per_s)


@dataclass(frozen=True, kw_only=True, slots=True)
class Teams:
    """Who runs the routed experts and who runs the rest; `host_crowded` and `device_crowded` while both do."""

    host: Team
    device: Team
    host_crowded: Team
    device_crowded: Team


def teams_of(spec: RunSpec, cost: Calibration) -> Teams:
    """The teams of both roles of a cell. Raises ValueError where there are too few cores for them."""
    machine, engine = _machine(spec), spec.engine
    device, host = role_cores(spec)
    everywhere = _spread_bytes_per_s(machine)
    host_bytes_per_s = machine.domains * machine.read_gb_per_s * 1e9 if engine.numa else everywhere
    teams = (_team(machine, host, host_bytes_per_s, cost), _team(machine, device, everywhere, cost))
    if engine.roles == "shared":
        return Teams(host=teams[0], device=teams[1], host_crowded=teams[0], device_crowded=teams[1])
    wanted = sum(team.read_bytes_per_s for team in teams)
    share = min(1.0, everywhere / wanted)
    crowded = [team.reading(share * team.read_bytes_per_s) for team in teams]
    return Teams(host=teams[0], device=teams[1], host_crowded=crowded[0], device_crowded=crowded[1])


def role_cores(spec: RunSpec) -> tuple[int, int]:
    """Cores of the device role and of the host role; the same where they share them.

    Raises ValueError where the machine has too few.
    """
    machine, engine = _machine(spec), spec.engine
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


def _team(machine: MachineSpec, cores: int, bytes_per_s: float, cost: Calibration) -> Team:
    """Some of the cores: their share of the peaks; what they read is bounded by their own limit as well."""
    share = cores / (machine.domains * machine.cores)
    own = max(cores * cost["core_read_gb_per_s"] * 1e9, share * bytes_per_s)
    return Team(
        cores=cores,
        read_bytes_per_s=min(bytes_per_s, own),
        peaks={isa: share * machine.domains * tera * 1e12 for isa, tera in _tera_peaks(machine).items() if tera},
    )


def _tera_peaks(machine: MachineSpec) -> dict[Isa, float | None]:
    return {
        (VECTOR, "bf16"): machine.vector_tflops,
        (VECTOR, "int8"): machine.vector_int8_tops,
        (AMX, "bf16"): machine.amx_tflops,
        (AMX, "int8"): machine.amx_int8_tops,
    }


def _spread_bytes_per_s(machine: MachineSpec) -> float:
    """All domains reading memory that is interleaved over them: the harmonic mean of local and remote reads."""
    domains = machine.domains
    per_gb = (1 / machine.read_gb_per_s + (domains - 1) / machine.remote_gb_per_s) / domains
    return domains / per_gb * 1e9


def _machine(spec: RunSpec) -> MachineSpec:
    if spec.machine is None:
        raise ValueError("machine: names no machine to simulate on")
    return spec.machine


Seconds = NDArray[np.float64]
_INT4: tuple[Precision, ...] = ("int4_g32", "int4_g64", "int4_g128", "q4_0")


@dataclass(frozen=True, kw_only=True, slots=True)
class Weights:
    """A set of weights that is read as a whole: `params` of them in `nbytes`."""

    params: int
    nbytes: float


@dataclass(frozen=True, kw_only=True, slots=True)
class PackedProducts:
    """Our kernels on packed weights of a precision, by one team."""

    cost: Calibration
    team: Team
    engine: EngineSpec
    precision: Precision

    def seconds(self, weights: Weights, rows: NDArray[np.int64]) -> Seconds:
        """[N] seconds of products of one set of weights with each number of rows (above 0)."""
        few, many = (VECTOR if self.engine.avx512 else AMX), (AMX if self.engine.amx else VECTOR)
        seconds: Seconds = np.where(
            rows >= self.engine.amx_min_tokens, self._on(many, weights, rows), self._on(few, weights, rows)
        )
        return seconds

    def _on(self, unit: str, weights: Weights, rows: NDArray[np.int64]) -> Seconds:
        """Reading and arithmetic overlap in part; int4 is unpacked once, whatever the number of rows."""
        cost, dtype = self.cost, self._dtype
        reading = weights.nbytes / (self.team.read_bytes_per_s * cost[f"{unit}_read"])
        multiplying = 2 * weights.params * rows / (self.team.peaks[unit, dtype] * cost[f"{unit}_{dtype}_peak"])
        unpacking = self._unpacking_s(unit, weights)
        return soft_maximum(reading + unpacking, multiplying, cost[f"{unit}_{dtype}_overlap"])

    def _unpacking_s(self, unit: str, weights: Weights) -> float:
        if self.precision not in _INT4:
            return 0.0
        return weights.params / (self.team.cores * self.cost[f"{unit}_unpacks_g_per_s"] * 1e9)

    @property
    def _dtype(self) -> Dtype:
        return "bf16" if self.precision == "bf16" else "int8"


@dataclass(frozen=True, kw_only=True, slots=True)
class TorchProducts:
    """PyTorch's linear layers (oneDNN) on bf16 weights, by one team."""

    cost: Calibration
    team: Team

    def seconds(self, weights: Weights, rows: NDArray[np.int64]) -> Seconds:
        """See `PackedProducts.seconds`."""
        cost, unit = self.cost, self.team.torch_unit
        reading = weights.nbytes / (self.team.read_bytes_per_s * cost["torch_read"])
        rate = self.team.peaks[unit, "bf16"] * cost[f"torch_{unit}_peak"]
        return soft_maximum(reading, 2 * weights.params * rows / rate, cost["torch_overlap"])


def soft_maximum(reading: float, computing: Seconds, overlap: float) -> Seconds:
    """The norm of both times: their sum at an overlap of 1, the larger of them from large ones on."""
    seconds: Seconds = (reading**overlap + computing**overlap) ** (1 / overlap)
    return seconds


# Into how many tasks the fused operator cuts an expert, give or take (kernels/moe/call.cpp).
TASKS = 32


@dataclass(frozen=True, kw_only=True, slots=True)
class Experts:
    """The routed experts of a cell, run by a team."""

    spec: RunSpec
    shape: MoEShape
    cost: Calibration
    team: Team

    def seconds(self, drawn: Selections, first: int, last: int) -> float:
        """Mean over the layers drawn, of a call for the selections `first` to `last` of each token."""
        if first == last:
            return 0.0
        calls = [self._call_s(counts(ids[:, first:last])) for ids in drawn]
        return sum(calls) / len(calls)

    def _call_s(self, tokens: NDArray[np.int64]) -> float:
        return self._fused_s(tokens) if self.spec.engine.fused else self._torch_s(tokens)

    def _torch_s(self, tokens: NDArray[np.int64]) -> float:
        """One after the other through Transformers' module (its loop over the experts that are hit)."""
        products = TorchProducts(cost=self.cost, team=self.team)
        fixed_ms = self.cost["torch_call_ms"] + len(tokens) * self.cost["torch_expert_ms"]
        return fixed_ms * 1e-3 + float(products.seconds(self._weights("bf16"), tokens).sum())

    def _fused_s(self, tokens: NDArray[np.int64]) -> float:
        """The tasks of all experts, dealt to threads as +d says."""
        engine, threads = self.spec.engine, self.team.cores
        products = PackedProducts(cost=self.cost, team=self.team, engine=engine, precision=self.spec.precision)
        of_one_thread = threads * products.seconds(self._weights(self.spec.precision), tokens)
        dealt = (dynamic_s if engine.dynamic else static_s)(of_one_thread, TASKS, threads)
        return self.cost["fused_call_us"] * 1e-6 + float(dealt)

    def _weights(self, precision: Precision) -> Weights:
        return Weights(params=self.shape.expert_params, nbytes=expert_bytes(self.shape, precision))


_BF16_BYTES = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Pass:
    """Tokens that go through the model together: `tokens` of each of `batch` sequences, after `context` others."""

    tokens: int
    batch: int
    context: int

    @property
    def rows(self) -> int:
        """Tokens of all sequences."""
        return self.batch * self.tokens


def passes_of(spec: RunSpec) -> tuple[Pass, ...]:
    """The passes of a step: one, or one for each chunk of a prompt. A prefill begins without context."""
    work = spec.workload
    if work.phase == "decode":
        return (Pass(tokens=1, batch=work.batch, context=work.prompt),)
    chunk = work.chunk or work.prompt
    begins = range(0, work.prompt, chunk)
    return tuple(Pass(tokens=min(chunk, work.prompt - at), batch=work.batch, context=at) for at in begins)


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """The device role of a cell, run by a team: Transformers' modules, or with +l ours."""

    spec: RunSpec
    shape: MoEShape
    cost: Calibration
    team: Team

    def attention_s(self, work: Pass) -> float:
        """Of one layer: projections and router, norms and the like, and attention itself."""
        shape, name = self.shape, "lean_layer_us" if self._recorded else "torch_layer_us"
        router = shape.experts * shape.hidden
        products = self._linear_s(shape.attention_params, work.rows) + self._linear_s(router, work.rows)
        around = self._score_s(work) + self._cache_s(work) + self._elementwise_s(work)
        return self.cost[name] * 1e-6 + products + around

    def mlp_s(self, ffn: int, rows: int) -> float:
        """Of a shared expert or a dense layer of that width; 0 where there is none."""
        return self._linear_s(3 * self.shape.hidden * ffn, rows)

    def head_s(self, batch: int) -> float:
        """Of the output head, for the last position of each sequence."""
        return self._linear_s(self.shape.vocab * self.shape.hidden, batch)

    @property
    def _recorded(self) -> bool:
        """Whether a step is replayed without the modelling code."""
        return self.spec.engine.packed_dense and self.spec.workload.phase == "decode"

    def _linear_s(self, params: int, rows: int) -> float:
        if not params:
            return 0.0
        spec, counted = self.spec, np.array([rows])
        if not spec.engine.packed_dense:
            torch = TorchProducts(cost=self.cost, team=self.team)
            return float(torch.seconds(Weights(params=params, nbytes=_BF16_BYTES * params), counted)[0])
        shape, precision = self.shape, spec.device_precision
        packed = PackedProducts(cost=self.cost, team=self.team, engine=spec.engine, precision=precision)
        nbytes = params * expert_bytes(shape, precision) / shape.expert_params
        return float(packed.seconds(Weights(params=params, nbytes=nbytes), counted)[0])

    def _score_s(self, work: Pass) -> float:
        """Scores and their products with values, in a pass of several tokens; the masked half is computed as well."""
        if work.tokens == 1:
            return 0.0
        flops = 2 * work.rows * (work.context + work.tokens) * sum(attention_widths(self.spec, self.shape))
        unit = self.team.torch_unit
        return flops / (self.team.peaks[unit, "bf16"] * self.cost[f"attention_{unit}_peak"])

    def _cache_s(self, work: Pass) -> float:
        """Keys and values of the context, in a decode step. Transformers copies and repeats them for its heads."""
        if work.tokens > 1:
            return 0.0
        nbytes = work.batch * work.context * cache_bytes(self.spec, self.shape)
        if self._recorded:
            return nbytes / (self.team.read_bytes_per_s * self.cost["lean_cache_read"])
        return nbytes * 1e-6 * self.cost["torch_cache_ms_per_mb"] * 1e-3 / self.team.cores

    def _elementwise_s(self, work: Pass) -> float:
        """Norms, rotations, additions, and the memory that each of them is given anew."""
        if work.tokens == 1:
            return 0.0
        moved_mb = work.rows * self.shape.hidden * _BF16_BYTES * 1e-6
        name = "lean_elementwise_ms_per_mb" if self.spec.engine.packed_dense else "torch_elementwise_ms_per_mb"
        return moved_mb * self.cost[name] * 1e-3 / self.team.cores


def attention_widths(spec: RunSpec, shape: MoEShape) -> tuple[int, int]:
    """Widths of queries and of values, over all heads."""
    config = text_config(spec.model.config)
    heads = int(config["num_attention_heads"])
    if config.get("kv_lora_rank"):
        key = int(config["qk_nope_head_dim"]) + int(config["qk_rope_head_dim"])
        return heads * key, heads * int(config["v_head_dim"])
    head = int(config.get("head_dim") or shape.hidden // heads)
    return heads * head, heads * head


def cache_bytes(spec: RunSpec, shape: MoEShape) -> int:
    """Bytes that a token leaves in the cache of a layer: of latent attention Transformers keeps what it expands to."""
    config, (keys, values) = text_config(spec.model.config), attention_widths(spec, shape)
    heads = int(config["num_attention_heads"])
    kept = heads if config.get("kv_lora_rank") else int(config.get("num_key_value_heads") or heads)
    return (keys + values) * kept // heads * _BF16_BYTES
