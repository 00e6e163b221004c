"""What a step must do at least, counted from a model's shape as the engine counts it from its modules."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean

import numpy as np
from numpy.typing import NDArray

from ktbench.sim.calibration import Calibration
from ktbench.sim.cores_device import Pass, passes_of
from ktbench.sim.cores_routing import Selections, counts, kept_experts, selections
from ktbench.spec.record import Work
from ktbench.spec.run_spec import RunSpec
from ktbench.spec.shape import MoEShape
from ktbench.spec.weights import dense_bytes, expert_bytes

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
