"""Which experts the tokens of a pass select, where the engine's device role runs on cores."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ktbench.engine.workload.recorded import read_trace
from ktbench.engine.workload.routing import layer_selections, route
from ktbench.sim.calibration import Calibration
from ktbench.spec.run_spec import RunSpec, WorkloadSpec
from ktbench.spec.shape import MoEShape

# So many layers or steps are drawn.
SAMPLES = 12

Selections = tuple[NDArray[np.int64], ...]  # of [T, k] each, an expert's gate weight falling along k


def selections(spec: RunSpec, shape: MoEShape, cost: Calibration, tokens: int) -> Selections:
    """Expert ids [tokens, k] of a few layers: those of the workload itself, or as its kind of routing draws them.

    Raises ValueError for a trace that is not there or does not fit the model.
    """
    work = spec.workload
    if work.phase == "layer":
        return _of_layer(work, shape)
    if work.routing == "model":
        variation = cost["router_variation" if spec.model.path else "synthetic_variation"]
        return _by_popularity(tokens, shape.experts, shape.top_k, variation, work.seed)
    if work.routing == "recorded":
        trace = read_trace(str(work.trace), shape.experts, shape.top_k, work.seed)
        return tuple(trace.draw(tokens, step) for step in range(SAMPLES))
    kind, seeds = work.routing, range(SAMPLES)
    return tuple(route(kind, tokens, shape.experts, shape.top_k, (work.seed, seed))[0] for seed in seeds)


@lru_cache(maxsize=256)
def _of_layer(work: WorkloadSpec, shape: MoEShape) -> Selections:
    return tuple(ids for ids, _ in layer_selections(work, shape))


def kept_experts(spec: RunSpec, top_k: int) -> int:
    """Experts that a token runs: all that it selects but those it skips."""
    return top_k - (spec.engine.skipping if drops(spec) else 0)


def drops(spec: RunSpec) -> bool:
    """Whether deferral and skipping act: in decode, and in prefill where that is asked for."""
    phase = spec.workload.phase
    return phase == "decode" or (phase == "prefill" and spec.engine.defer_prefill)


def counts(ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """[A] tokens of each expert that some token selected, in the order of experts."""
    tokens = np.bincount(ids.ravel())
    return tokens[tokens > 0]


@lru_cache(maxsize=64)
def _by_popularity(tokens: int, experts: int, top_k: int, variation: float, seed: int) -> Selections:
    """Experts of gamma distributed popularity, drawn by each token without replacement (Gumbel keys, Yellott 1977)."""
    rng = np.random.default_rng(seed)
    drawn = []
    for _ in range(SAMPLES):
        shape = 1 / max(variation, 1e-3) ** 2
        popularity = np.maximum(rng.gamma(shape, 1 / shape, experts), np.finfo(float).tiny)
        keys = np.log(popularity) + rng.gumbel(size=(tokens, experts))
        drawn.append(np.argsort(-keys, axis=1)[:, :top_k])
    return tuple(drawn)
