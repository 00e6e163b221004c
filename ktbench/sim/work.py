"""What a step must do at least, and what the engine's counters would count in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from statistics import mean

import numpy as np
from numpy.typing import NDArray

from ktbench.sim.calibration import Calibration
from ktbench.sim.cost_cpu import TASKS
from ktbench.sim.cost_gpu import gpu_costs
from ktbench.sim.graph import Pass, deferred_experts, has_effect, head_rows, kept_experts, machine_of, passes_of
from ktbench.sim.host_kernels import TASK_COLUMNS
from ktbench.sim.placement import coverage
from ktbench.sim.routing import SAMPLES, counts, loads_of, selections
from ktbench.sim.sizes import BF16_BYTES, sizes_of
from ktbench.spec.record import Work
from ktbench.spec.run_spec import RunSpec
from ktbench.spec.shape import MoEShape
from ktbench.spec.weights import dense_bytes, expert_bytes, weight_bits

# A tile of AMX holds 16 rows of activations against a KiB of weights (kernels/core/layout.h).
_TILE_ROWS, _TILE_BYTES = 16, 1024


def step_work(spec: RunSpec, cost: Calibration) -> Work:
    """Weight bytes that a step reads once, its operations and tokens.

    On cores of all modules, as the engine counts them (ktbench/engine/work.py), without norms and the biases of
    attention, which are far below 1 %. With a GPU of the host's routed experts alone. Of training see `Work.trained`.
    """
    forward = _forward_work(spec, cost)
    if spec.workload.phase != "train":
        return forward
    shape, lora, has_gpu = spec.model.shape, spec.lora, _has_gpu(spec)
    of_experts = shape.moe_layers * shape.top_k * lora.expert
    return forward.trained(
        head=0 if has_gpu else 2 * forward.tokens * shape.vocab * shape.hidden,
        layers=shape.layers,
        lora=of_experts + (0 if has_gpu else shape.layers * lora.attention),
    )


def _forward_work(spec: RunSpec, cost: Calibration) -> Work:
    if _has_gpu(spec):
        return _host_work(spec, cost)
    if spec.workload.phase == "layer":
        return _layer_work(spec, cost)
    works = [_pass_work(spec, cost, one) for one in passes_of(spec)]
    return Work(
        weight_bytes=sum(work.weight_bytes for work in works),
        flops=sum(work.flops for work in works),
        tokens=sum(work.tokens for work in works),
    )


def step_counters(spec: RunSpec, cost: Calibration) -> dict[str, int]:
    """Counters of the feature table (`ktbench.spec.features`) over one step whose deferral is a number."""
    engine = spec.engine
    tokens, layers = spec.workload.tokens_per_step, spec.model.shape.moe_layers
    calls = _gpu_calls(spec, cost) if _has_gpu(spec) else _cpu_calls(spec, cost)
    return _experts_counters(spec, calls) | {
        "graph_replays": _replays(spec, cost) if _has_gpu(spec) else 0,
        "linear_calls": 0 if _has_gpu(spec) else _linear_calls(spec),
        "deferred_experts": tokens * deferred_experts(spec) * (layers - 1),
        "skipped_experts": tokens * engine.skipping * layers if has_effect(spec) else 0,
        "streamed_bytes": _streamed_bytes(spec, cost) if _has_gpu(spec) else 0,
        "flag_answers": 0,  # not simulated
    }


def _replays(spec: RunSpec, cost: Calibration) -> int:
    """Passes of a step that are CUDA graphs."""
    return sum(gpu_costs(spec, cost).captured(work) for work in passes_of(spec))


def _streamed_bytes(spec: RunSpec, cost: Calibration) -> int:
    """Of the experts that have tokens, where they stream to the device."""
    loads, layers = _loads(spec, cost, streamed=True)
    return round(layers * float((loads > 0).sum()) * sizes_of(spec).expert_bytes)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Calls:
    """Experts that run on the host in the layers drawn: `tokens` [N] of each.

    `layers` is how many layers of the step one layer drawn stands for, `kernels` and `tasks` are those of an expert.
    """

    tokens: NDArray[np.int64]
    layers: float
    kernels: int
    tasks: int
    expert_bytes: int
    tile_bytes: int


def _experts_counters(spec: RunSpec, calls: _Calls) -> dict[str, int]:
    """The counters of kernels and tasks, which count what the simulation schedules: about as many as the operator's."""
    engine, tokens = spec.engine, calls.tokens
    on_amx = tokens[tokens >= engine.first_on_amx]
    tiles = float(np.ceil(on_amx / _TILE_ROWS).sum()) * calls.tile_bytes / _TILE_BYTES
    seen = {
        "avx2_calls": calls.kernels * len(tokens) if engine.avx2 else 0,
        "avx512_calls": calls.kernels * (len(tokens) - len(on_amx)) if engine.avx512 else 0,
        "amx_tiles": tiles,
        "tasks_dynamic": len(tokens) * calls.tasks if engine.dynamic else 0,
        "local_bytes": len(tokens) * calls.expert_bytes if engine.numa else 0,
    }
    return {name: round(calls.layers * count) if engine.fused else 0 for name, count in seen.items()}


def _gpu_calls(spec: RunSpec, cost: Calibration) -> _Calls:
    """KTransformers: gate and up are split over the domains, down has all its columns in each."""
    sizes, (loads, layers) = sizes_of(spec), _loads(spec, cost, streamed=False)
    domains = machine_of(spec).domains
    return _Calls(
        tokens=loads[loads > 0],
        layers=layers,
        kernels=1,
        tasks=2 * ceil(sizes.expert_ffn / TASK_COLUMNS) + domains * ceil(sizes.hidden / TASK_COLUMNS),
        expert_bytes=sizes.expert_bytes,
        tile_bytes=sizes.expert_bytes,
    )


def _cpu_calls(spec: RunSpec, cost: Calibration) -> _Calls:
    shape, work = spec.model.shape, spec.workload
    each = [work.batch] if work.phase == "layer" else [one.rows for one in passes_of(spec)]
    drawn = [_expert_tokens(spec, cost, rows) for rows in each]
    return _Calls(
        tokens=np.concatenate([tokens for layers in drawn for tokens in layers]),
        layers=_layers(spec) / len(drawn[-1]),
        kernels=TASKS,
        tasks=TASKS,
        expert_bytes=expert_bytes(shape, spec.precision),
        tile_bytes=max(weight_bits(spec.precision), 8) // 8 * shape.expert_params,
    )


def _linear_calls(spec: RunSpec) -> int:
    """Products of an attention, two of an MLP, the head."""
    if not spec.engine.packed_dense or spec.workload.phase == "layer":
        return 0
    shape = spec.model.shape
    mlps = shape.dense_layers + (shape.moe_layers if shape.shared_ffn else 0)
    return len(passes_of(spec)) * (_attention_products(spec) * shape.layers + 2 * mlps + 1)


def _attention_products(spec: RunSpec) -> int:
    """Queries, keys and values as one, and the output; of latent attention queries in one step or two, and latents."""
    config = spec.model.config
    if not config.get("kv_lora_rank"):
        return 2
    return 3 if config.get("q_lora_rank") is None else 4


def _host_work(spec: RunSpec, cost: Calibration) -> Work:
    """Bytes of the experts that were selected, each read once a layer, and the arithmetic of all selections."""
    sizes, (loads, layers) = sizes_of(spec), _loads(spec, cost)
    return Work(
        weight_bytes=round(layers * float((loads > 0).sum()) * sizes.expert_bytes),
        flops=round(layers * float(loads.sum()) * sizes.expert_flops),
        tokens=spec.workload.tokens_per_step,
    )


def _layer_work(spec: RunSpec, cost: Calibration) -> Work:
    shape, tokens = spec.model.shape, spec.workload.batch
    flops = 2 * tokens * shape.top_k * shape.expert_params
    return Work(weight_bytes=_experts_bytes(spec, _expert_tokens(spec, cost, tokens)), flops=flops, tokens=tokens)


def _pass_work(spec: RunSpec, cost: Calibration, work: Pass) -> Work:
    shape, rows = spec.model.shape, work.rows
    head = shape.vocab * shape.hidden
    dense = shape.other_params - (0 if shape.tied_head else head)
    routed = shape.moe_layers * kept_experts(spec) * shape.expert_params
    experts_bytes = _experts_bytes(spec, _expert_tokens(spec, cost, rows))
    return Work(
        weight_bytes=_dense_bytes(spec, shape, dense) + shape.moe_layers * experts_bytes,
        flops=2 * (rows * (dense - head + routed) + head_rows(spec, work) * head),
        tokens=rows,
    )


def _experts_bytes(spec: RunSpec, layers: Sequence[NDArray[np.int64]]) -> int:
    precision = spec.precision if spec.engine.fused else "bf16"
    return round(mean(len(tokens) for tokens in layers) * expert_bytes(spec.model.shape, precision))


def _dense_bytes(spec: RunSpec, shape: MoEShape, params: int) -> int:
    """Of all modules that run for every token. Packed with +l, except routers, which stay bf16."""
    if not spec.engine.packed_dense:
        return BF16_BYTES * params
    routers = shape.moe_layers * shape.experts * shape.hidden
    packed = dense_bytes(shape, spec.device_precision)
    return packed + routers * BF16_BYTES - round(packed * routers / params)


def _expert_tokens(spec: RunSpec, cost: Calibration, rows: int) -> list[NDArray[np.int64]]:
    """Of each layer drawn the tokens of every expert that runs."""
    return [counts(ids[:, : kept_experts(spec)]) for ids in selections(spec, cost, rows)]


def _loads(spec: RunSpec, cost: Calibration, *, streamed: bool | None = None) -> tuple[NDArray[np.int64], float]:
    """[N, E] tokens of each expert in a layer drawn for a pass, and how many layers on the host it stands for.

    Of passes whose experts stream or do not where `streamed` is given.
    """
    costs, none = gpu_costs(spec, cost), np.zeros((0, spec.model.shape.experts), dtype=np.int64)
    passes = [one for one in passes_of(spec) if streamed in (None, costs.streams(one))]
    drawn = [loads_of(spec, cost, one.rows, kept_experts(spec)) for one in passes]
    return np.concatenate([none, *drawn]), _layers(spec) * _host_share(spec, cost) / SAMPLES


def _layers(spec: RunSpec) -> int:
    return 1 if spec.workload.phase == "layer" else spec.model.shape.moe_layers


def _host_share(spec: RunSpec, cost: Calibration) -> float:
    """Mean share of the selections that the host serves."""
    if spec.workload.phase == "layer":
        return 1.0
    return 1.0 - float(np.mean([coverage(spec, cost, layer).device for layer in range(spec.model.shape.moe_layers)]))


def _has_gpu(spec: RunSpec) -> bool:
    return spec.machine is not None and spec.machine.gpu is not None
