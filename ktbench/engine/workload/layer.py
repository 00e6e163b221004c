"""Routing of one MoE layer on its own: the experts and gate weights of every step."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ktbench.engine.workload.recorded import read_trace
from ktbench.engine.workload.routing import gate_weights, route
from ktbench.spec.run_spec import WorkloadSpec
from ktbench.spec.shape import MoEShape

# Expert ids int64 and gate weights float32, both [tokens, top_k].
Selection = tuple[NDArray[np.int64], NDArray[np.float32]]


def layer_selections(workload: WorkloadSpec, shape: MoEShape) -> tuple[Selection, ...]:
    """One selection for each step of a workload with phase=layer; with `active_experts` the ids are below that number.

    Raises ValueError for routing=model, which needs a router, and for a trace that cannot be read or does not match.
    """
    draw = _draw(workload, shape)
    return tuple(draw(step) for step in range(workload.steps))


def _draw(workload: WorkloadSpec, shape: MoEShape) -> Callable[[int], Selection]:
    kind, tokens, top_k, seed = workload.routing, workload.batch, shape.top_k, workload.seed
    if kind == "model":
        raise ValueError("workload.routing=model: a layer alone has no router")
    if kind != "recorded":
        experts = workload.active_experts or shape.experts
        return lambda step: route(kind, tokens, experts, top_k, (seed, step))
    if workload.trace is None:
        raise ValueError("workload.routing=recorded: set workload.trace to FILE or FILE:ARRAY")
    trace = read_trace(workload.trace, shape.experts, top_k, seed)
    return lambda step: (trace.draw(tokens, step), gate_weights(np.random.default_rng((seed, step)), tokens, top_k))
