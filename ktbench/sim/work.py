"""What the host must do in a step with a GPU, and what the engine's counters would see of it."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from statistics import mean

import numpy as np
from numpy.typing import NDArray

from ktbench.sim.calibration import Calibration
from ktbench.sim.cores import chosen_deferral
from ktbench.sim.cost_cpu import TASKS, Pass, passes_of
from ktbench.sim.placement import coverage
from ktbench.sim.routing import Selections, counts, drops, kept_experts, loads_of, selections
from ktbench.sim.sizes import Sizes, sizes_of
from ktbench.spec.record import Work
from ktbench.spec.run_spec import RunSpec
from ktbench.spec.shape import MoEShape
from ktbench.spec.weights import dense_bytes, expert_bytes

TASK_COLUMNS = 128  # output columns of a task
# A tile of AMX holds 16 rows of activations against a KiB of weights.
TILE_ROWS, TILE_BYTES = 16, 1024


_BF16_BYTES = 2


def cores_work(spec: RunSpec, cost: Calibration) -> Work:
    """Weight bytes read once, operations and tokens of a step (ktbench/engine/work.py).

    Norms and the biases of attention are left out: far below 1 %. With routing=model the experts that tokens select are
    drawn as `cost` says.
    """
    if spec.workload.phase == "layer":
        return _layer_work(spec, cost)
    works = [_pass_work(spec, cost, one) for one in passes_of(spec)]
    return Work(
        weight_bytes=sum(work.weight_bytes for work in works),
        flops=sum(work.flops for work in works),
        tokens=sum(work.tokens for work in works),
    )


def expert_tokens(spec: RunSpec, drawn: Selections) -> list[NDArray[np.int64]]:
    """Of each layer drawn the tokens of every expert that runs."""
    kept = kept_experts(spec, spec.model.shape.top_k)
    return [counts(ids[:, :kept]) for ids in drawn]


def _layer_work(spec: RunSpec, cost: Calibration) -> Work:
    shape, tokens = spec.model.shape, spec.workload.batch
    layers = expert_tokens(spec, selections(spec, shape, cost, tokens))
    flops = 2 * tokens * shape.top_k * shape.expert_params
    return Work(weight_bytes=_experts_bytes(spec, shape, layers), flops=flops, tokens=tokens)


def _pass_work(spec: RunSpec, cost: Calibration, work: Pass) -> Work:
    shape, rows = spec.model.shape, work.rows
    head = shape.vocab * shape.hidden
    dense = shape.other_params - (0 if shape.tied_head else head)
    routed = shape.moe_layers * kept_experts(spec, shape.top_k) * shape.expert_params
    layers = expert_tokens(spec, selections(spec, shape, cost, rows))
    return Work(
        weight_bytes=_dense_bytes(spec, shape, dense) + shape.moe_layers * _experts_bytes(spec, shape, layers),
        flops=2 * (rows * (dense - head + routed) + work.batch * head),
        tokens=rows,
    )


def _experts_bytes(spec: RunSpec, shape: MoEShape, layers: Sequence[NDArray[np.int64]]) -> int:
    precision = spec.precision if spec.engine.fused else "bf16"
    return round(mean(len(tokens) for tokens in layers) * expert_bytes(shape, precision))


def _dense_bytes(spec: RunSpec, shape: MoEShape, params: int) -> int:
    """Of all that every token meets. The lean device role packs it, but for routers, which stay bf16."""
    if not spec.engine.packed_dense:
        return _BF16_BYTES * params
    routers = shape.moe_layers * shape.experts * shape.hidden
    packed = dense_bytes(shape, spec.device_precision)
    return packed + routers * _BF16_BYTES - round(packed * routers / params)


def cores_counters(spec: RunSpec, cost: Calibration) -> dict[str, int]:
    """The counters of the feature table (`ktbench.spec.features`) for one step.

    Those of calls and tasks count the tasks that the simulation deals, which is about as many as the operator's.
    """
    seen = dict.fromkeys(("avx512_calls", "amx_tiles", "tasks_dynamic", "local_bytes", "graph_replays"), 0)
    if spec.engine.fused:
        seen |= _of_experts(spec, cost)
    acts = drops(spec)
    tokens, layers = spec.workload.tokens_per_step, spec.model.shape.moe_layers
    return seen | {
        "linear_calls": _linear_calls(spec),
        "deferred_experts": tokens * chosen_deferral(spec, cost) * (layers - 1) if acts else 0,
        "skipped_experts": tokens * spec.engine.skipping * layers if acts else 0,
    }


def _of_experts(spec: RunSpec, cost: Calibration) -> dict[str, int]:
    shape, engine, work = spec.model.shape, spec.engine, spec.workload
    layers = 1 if work.phase == "layer" else shape.moe_layers
    each = [work.batch] if work.phase == "layer" else [one.rows for one in passes_of(spec)]
    tokens = [np.concatenate(expert_tokens(spec, drawn := selections(spec, shape, cost, rows))) for rows in each]
    share = layers / len(drawn)  # of the layers drawn in the step
    all_tokens = np.concatenate(tokens)
    on_amx = all_tokens[all_tokens >= (engine.amx_min_tokens if engine.avx512 else 0)] if engine.amx else all_tokens[:0]
    calls = TASKS * len(all_tokens)
    seen = {
        "avx512_calls": TASKS * (len(all_tokens) - len(on_amx)),
        "amx_tiles": _tiles(spec, shape, on_amx),
        "tasks_dynamic": calls if engine.dynamic else 0,
        "local_bytes": len(all_tokens) * expert_bytes(shape, spec.precision) if engine.numa else 0,
    }
    return {name: round(share * count) for name, count in seen.items()}


def _tiles(spec: RunSpec, shape: MoEShape, tokens: NDArray[np.int64]) -> int:
    row_tiles = int(np.ceil(tokens / TILE_ROWS).sum())
    bytes_of_one = (2 if spec.precision == "bf16" else 1) * shape.expert_params
    return row_tiles * bytes_of_one // TILE_BYTES


def _linear_calls(spec: RunSpec) -> int:
    """Two products of an attention, two of an MLP, the head."""
    if not spec.engine.packed_dense or spec.workload.phase == "layer":
        return 0
    shape = spec.model.shape
    mlps = shape.dense_layers + (shape.moe_layers if shape.shared_ffn else 0)
    return len(passes_of(spec)) * (2 * shape.layers + 2 * mlps + 1)


def step_work(spec: RunSpec, cost: Calibration) -> Work:
    """Bytes of the experts that were selected, each read once a layer, and the arithmetic of all selections."""
    sizes, loads = sizes_of(spec), _loads(spec, cost)
    layers = _layers(spec) * _on_host(spec, cost) / len(loads)
    return Work(
        weight_bytes=round(layers * float((loads > 0).sum()) * sizes.expert_bytes),
        flops=round(layers * float(loads.sum()) * sizes.expert_flops),
        tokens=spec.workload.tokens_per_step,
    )


def step_counters(spec: RunSpec, cost: Calibration) -> dict[str, int]:
    """Counters of the feature table (`ktbench.spec.features`) over one step."""
    engine, sizes, loads = spec.engine, sizes_of(spec), _loads(spec, cost)
    layers = _layers(spec) * _on_host(spec, cost) / len(loads)
    rows = loads[loads > 0]
    amx = rows[rows >= (engine.amx_min_tokens if engine.avx512 else 0)] if engine.amx else rows[:0]
    acts = _acts(spec)
    moe_layers, tokens = spec.model.shape.moe_layers, spec.workload.tokens_per_step
    late = int(engine.deferral) if acts and engine.deferral != "auto" else 0
    seen = {
        "avx512_calls": layers * (len(rows) - len(amx)) if engine.avx512 else 0,
        "amx_tiles": layers * _tiles_step_work(amx, sizes),
        "tasks_dynamic": layers * len(rows) * _tasks(spec, sizes) if engine.dynamic else 0,
        "local_bytes": layers * len(rows) * sizes.expert_bytes if engine.numa else 0,
        "graph_replays": 1 if engine.cuda_graph and spec.workload.phase == "decode" else 0,
        "linear_calls": 0,
        "deferred_experts": late * tokens * (moe_layers - 1),
        "skipped_experts": engine.skipping * tokens * moe_layers if acts else 0,
    }
    return {name: round(count) for name, count in seen.items()}


def _layers(spec: RunSpec) -> int:
    return 1 if spec.workload.phase == "layer" else spec.model.shape.moe_layers


def _loads(spec: RunSpec, cost: Calibration) -> NDArray[np.int64]:
    """[samples, E] tokens of each expert in a layer."""
    kept = spec.model.shape.top_k - (spec.engine.skipping if _acts(spec) else 0)
    return loads_of(spec, cost, spec.workload.tokens_per_step, kept)


def _acts(spec: RunSpec) -> bool:
    """Whether deferral and skipping act."""
    return spec.workload.phase == "decode" or spec.engine.defer_prefill


def _on_host(spec: RunSpec, cost: Calibration) -> float:
    """Mean share of the selections that the host serves."""
    if spec.workload.phase == "layer":
        return 1.0
    return 1.0 - float(np.mean([coverage(spec, cost, layer).device for layer in range(spec.model.shape.moe_layers)]))


def _tasks(spec: RunSpec, sizes: Sizes) -> int:
    """Of an expert: gate and up are split over the domains, down has all its columns in each."""
    domains = spec.machine.domains if spec.machine else 1
    return 2 * ceil(sizes.expert_ffn / TASK_COLUMNS) + domains * ceil(sizes.hidden / TASK_COLUMNS)


def _tiles_step_work(rows: NDArray[np.int64], sizes: Sizes) -> float:
    return float(np.ceil(rows / TILE_ROWS).sum()) * sizes.expert_bytes / TILE_BYTES
