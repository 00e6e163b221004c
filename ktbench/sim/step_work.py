"""What the host must do in a step with a GPU, and what the engine's counters would see of it."""

from __future__ import annotations

from math import ceil

import numpy as np
from numpy.typing import NDArray

from ktbench.sim.calibration import Calibration
from ktbench.sim.loads import loads_of
from ktbench.sim.placement import coverage
from ktbench.sim.sizes import Sizes, sizes_of
from ktbench.sim.units import TASK_COLUMNS, TILE_BYTES, TILE_ROWS
from ktbench.spec.record import Work
from ktbench.spec.run_spec import RunSpec


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
        "amx_tiles": layers * _tiles(amx, sizes),
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


def _tiles(rows: NDArray[np.int64], sizes: Sizes) -> float:
    return float(np.ceil(rows / TILE_ROWS).sum()) * sizes.expert_bytes / TILE_BYTES
