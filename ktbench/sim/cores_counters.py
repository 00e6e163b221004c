"""What the engine's counters would see in a simulated step."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ktbench.sim.calibration import Calibration
from ktbench.sim.cores import chosen_deferral
from ktbench.sim.cores_device import passes_of
from ktbench.sim.cores_experts import TASKS
from ktbench.sim.cores_routing import drops, selections
from ktbench.sim.cores_work import expert_tokens
from ktbench.sim.units import TILE_BYTES, TILE_ROWS
from ktbench.spec.run_spec import RunSpec
from ktbench.spec.shape import MoEShape
from ktbench.spec.weights import expert_bytes


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
