"""The tokens that experts get in a cell, layer by layer."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ktbench.engine.workload.recorded import read_trace
from ktbench.engine.workload.routing import route
from ktbench.sim.calibration import Calibration
from ktbench.sim.routing import skewed_loads
from ktbench.spec.run_spec import RunSpec
from ktbench.spec.shape import text_config

# So many layers are drawn, and repeated through the depth of a model.
SAMPLES = 12
_FROM_TOKENS = 32  # where the skew constants hold
# Selections of a token by which popularities are told, so many that chance says nothing.
_MANY = 100_000
_GROUPED = "deepseek_v3"
_GROUPS = 8


def loads_of(spec: RunSpec, cost: Calibration, tokens: int, picks: int) -> NDArray[np.int64]:
    """[SAMPLES, E] tokens of each expert where each of `tokens` tokens selects `picks` of them.

    Of a token alone that a model routes the first experts stand for those that it selects. Of more tokens or of other
    routing, as the workload says: by the skew of the model's family, even, as 1/rank, all to the same, or as recorded.
    Raises ValueError for a trace that does not fit the model.
    """
    work, experts = spec.workload, spec.model.shape.experts
    if picks == 0 or (tokens == 1 and work.routing == "model"):
        alone = np.zeros((SAMPLES, experts), dtype=np.int64)
        alone[:, :picks] = 1
        return alone
    if work.routing == "model":
        return np.minimum(_by_skew(spec, cost, tokens, picks), tokens)
    if work.routing == "recorded":
        trace = read_trace(str(work.trace), experts, spec.model.shape.top_k, work.seed)
        return np.stack([_counted(trace.draw(tokens, step)[:, :picks], experts) for step in range(SAMPLES)])
    among = work.active_experts or experts
    drawn = [route(work.routing, tokens, among, picks, (work.seed, step))[0] for step in range(SAMPLES)]
    return np.stack([_counted(ids, experts) for ids in drawn])


def popularity_of(spec: RunSpec, cost: Calibration) -> NDArray[np.float64]:
    """[SAMPLES, E] shares of the selections that experts get in the long run."""
    many = _by_skew(spec, cost, _FROM_TOKENS, _MANY).astype(np.float64)
    return np.asarray(many / many.sum(axis=1, keepdims=True))


def _by_skew(spec: RunSpec, cost: Calibration, tokens: int, picks: int) -> NDArray[np.int64]:
    family = str(text_config(spec.model.config).get("model_type"))
    name = f"skew_{family}" if f"skew_{family}" in cost.constants else "skew_other"
    if not spec.engine.fused and f"{name}_original" in cost.constants:
        name += "_original"
    variation = cost[name] * (max(tokens, 1) / _FROM_TOKENS) ** -cost["skew_decay"]
    grouped = family == _GROUPED
    return _drawn(
        spec.model.shape.experts,
        tokens * picks,
        round(variation, 6),
        _GROUPS if grouped else 1,
        cost["skew_groups"] if grouped else 0.0,
        spec.workload.seed,
    )


@lru_cache(maxsize=256)
def _drawn(
    experts: int, picks: int, variation: float, groups: int, group_variation: float, seed: int
) -> NDArray[np.int64]:
    return skewed_loads(
        samples=SAMPLES,
        experts=experts,
        picks=picks,
        variation=variation,
        groups=groups,
        group_variation=group_variation,
        seed=seed,
    )


def _counted(ids: NDArray[np.int64], experts: int) -> NDArray[np.int64]:
    return np.bincount(ids.ravel(), minlength=experts)
