"""Which experts the tokens of a step select, and which share of them lives at the device.

Ids are for our engine on cores, tokens of each expert for KTransformers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import comb, sqrt

import numpy as np
from numpy.typing import NDArray

from ktbench.engine.placement import DynamicPlacement
from ktbench.engine.workload.recorded import Trace, count_selections, read_trace
from ktbench.engine.workload.routing import layer_selections, route
from ktbench.sim.calibration import Calibration
from ktbench.sim.workloads import workload_of
from ktbench.spec.engine import PlacementSpec
from ktbench.spec.run_spec import RunSpec, WorkloadSpec
from ktbench.spec.shape import MoEShape, text_config

# Layers that are drawn, and repeated through the depth of a model.
SAMPLES = 12
_FROM_TOKENS = 32  # where the skew constants hold
# Selections of a token from which popularities are computed, so many that chance does not matter.
_MANY = 100_000
_GROUPED = "deepseek_v3"
_GROUPS = 8

Selections = tuple[NDArray[np.int64], ...]  # of [T, k] each, an expert's gate weight falling along k


def selections(spec: RunSpec, cost: Calibration, tokens: int) -> Selections:
    """Expert ids [tokens, k] of a few layers: those of the workload itself, or as its kind of routing draws them.

    Raises ValueError for a trace that is not there or does not fit the model.
    """
    work, shape = spec.workload, spec.model.shape
    if workload_of(spec).single_layer:
        return _of_layer(work, shape)
    if work.routing == "model":
        return _by_popularity(tokens, work.batch, shape.experts, shape.top_k, _variation(spec, cost), work.seed)
    return _by_workload(spec, tokens, shape.top_k)


def _variation(spec: RunSpec, cost: Calibration) -> float:
    """Of popularities. A first layer alone routes embeddings, which seeded routers spread evenly."""
    if spec.model.path:
        return cost["router_variation"]
    return 0.0 if spec.model.shape.layers == 1 else cost["synthetic_variation"]


def counts(ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """[A] tokens of each expert that some token selected, in the order of experts."""
    tokens = np.bincount(ids.ravel())
    return tokens[tokens > 0]


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
    return np.stack([np.bincount(ids.ravel(), minlength=experts) for ids in _by_workload(spec, tokens, picks)])


def popularity_of(spec: RunSpec, cost: Calibration, *, lately: bool = False) -> NDArray[np.float64]:
    """[SAMPLES, E] shares of the selections that experts get in the long run, or at a time, by its subject.

    Of a subject, popularities are those of the long run times factors whose coefficient of variation is `skew_drift`.
    """
    many = _by_skew(spec, cost, _FROM_TOKENS, _MANY, cost["skew_drift"] if lately else 0.0).astype(np.float64)
    return np.asarray(many / many.sum(axis=1, keepdims=True))


def recorded_trace(work: WorkloadSpec, shape: MoEShape) -> Trace:
    """The recording of a workload. Raises ValueError where it is not there or does not fit the model."""
    return read_trace(str(work.trace), shape.experts, shape.top_k, work.seed)


def _by_workload(spec: RunSpec, tokens: int, picks: int) -> Selections:
    """The first `picks` selections of each token, as recorded or as the workload's kind of routing draws them."""
    work, shape = spec.workload, spec.model.shape
    assert work.routing != "model"
    if work.routing == "recorded":
        trace = recorded_trace(work, shape)
        return tuple(trace.draw(tokens, step)[:, :picks] for step in range(SAMPLES))
    among = work.active_experts or shape.experts
    return tuple(route(work.routing, tokens, among, picks, (work.seed, step))[0] for step in range(SAMPLES))


@lru_cache(maxsize=256)
def _of_layer(work: WorkloadSpec, shape: MoEShape) -> Selections:
    return tuple(ids for ids, _ in layer_selections(work, shape))


@lru_cache(maxsize=64)
def _by_popularity(tokens: int, sequences: int, experts: int, top_k: int, variation: float, seed: int) -> Selections:
    """Experts of gamma distributed popularity, drawn by each token without replacement (Gumbel keys, Yellott 1977).

    Each sequence has a popularity of its own: attention makes the tokens of one alike, not those of several.
    """
    rng = np.random.default_rng(seed)
    drawn = []
    for _ in range(SAMPLES):
        shape = 1 / max(variation, 1e-3) ** 2
        popularity = np.maximum(rng.gamma(shape, 1 / shape, (sequences, experts)), np.finfo(float).tiny)
        of_tokens = np.log(popularity)[np.arange(tokens) % sequences]
        keys = of_tokens + rng.gumbel(size=(tokens, experts))
        drawn.append(np.argsort(-keys, axis=1)[:, :top_k])
    return tuple(drawn)


def _by_skew(spec: RunSpec, cost: Calibration, tokens: int, picks: int, drift: float = 0.0) -> NDArray[np.int64]:
    family = str(text_config(spec.model.config).get("model_type"))
    name = f"skew_{family}" if f"skew_{family}" in cost.constants else "skew_other"
    keeps_gate = not spec.engine.fused or workload_of(spec).trains
    if keeps_gate and f"{name}_original" in cost.constants:
        name += "_original"
    variation = cost[name] * (max(tokens, 1) / _FROM_TOKENS) ** -cost["skew_decay"]
    grouped = family == _GROUPED
    return skewed_loads(
        samples=SAMPLES,
        experts=spec.model.shape.experts,
        picks=tokens * picks,
        variation=round(sqrt((1 + variation**2) * (1 + drift**2) - 1), 6),
        groups=_GROUPS if grouped else 1,
        group_variation=cost["skew_groups"] if grouped else 0.0,
        seed=spec.workload.seed,
    )


@lru_cache(maxsize=256)
def skewed_loads(  # noqa: PLR0913, what a generator of loads takes
    *,
    samples: int,
    experts: int,
    picks: int,
    variation: float,
    groups: int = 1,
    group_variation: float = 0.0,
    seed: int,
) -> NDArray[np.int64]:
    """[samples, experts] tokens of each expert where `picks` selections are made, in the order of experts.

    Popularities are gamma distributed with the coefficient of variation `variation`, times a gamma factor of
    `group_variation` for each of `groups` neighbouring groups (experts of one group are trained together and
    correlate); counts are Poisson over them, which is what independent tokens give. Quantiles of one set of uniform
    numbers: what is drawn changes little where the arguments change little.
    """
    rng = np.random.default_rng(seed)
    popularity = _gamma(rng.random((samples, experts)), variation)
    popularity *= np.repeat(_gamma(rng.random((samples, groups)), group_variation), -(-experts // groups), axis=1)[
        :, :experts
    ]
    popularity /= popularity.sum(axis=1, keepdims=True)
    return _poisson(rng.random((samples, experts)), popularity * picks)


def _gamma(quantiles: NDArray[np.float64], variation: float) -> NDArray[np.float64]:
    from scipy.special import gammaincinv  # takes 0.2 s to load: only for those who need it

    if variation == 0:
        return np.ones_like(quantiles)
    return np.asarray(gammaincinv(1 / variation**2, quantiles) * variation**2)


def _poisson(quantiles: NDArray[np.float64], mean: NDArray[np.float64]) -> NDArray[np.int64]:
    """Quantiles of Poisson distributions, those of `scipy.stats.poisson.ppf`, which takes 1 s to load."""
    from scipy.special import pdtr, pdtrik  # as in _gamma

    counts = np.ceil(pdtrik(quantiles, mean))
    fewer = np.maximum(counts - 1, 0)  # rounding may have made one too many
    found: NDArray[np.int64] = np.where(pdtr(fewer, mean) >= quantiles, fewer, counts).astype(np.int64)
    return found


# Tokens of a recording from which experts are placed, and as many on which that is judged.
_REPLAYED = 2048


@dataclass(frozen=True, kw_only=True, slots=True)
class Coverage:
    """Of a layer: the expected share of selections that the device serves, and how likely the host has any to serve."""

    device: float
    any_on_host: float


ALL_ON_HOST = Coverage(device=0.0, any_on_host=1.0)


def coverage(spec: RunSpec, cost: Calibration, layer: int) -> Coverage:
    """Coverage of an MoE layer (counted from 0 among those) under the cell's placement.

    uniform and random: the ratio. front_loading: whole layers from the first on. frequency: the most popular experts of
    the model's skew; dynamic: those of the subject that it is about, which it has seen. Of recorded routing both are
    replayed.
    """
    placed, shape = spec.engine.placement, spec.model.shape
    if placed.policy == "host":
        return ALL_ON_HOST
    if placed.policy == "front_loading":
        here = min(max(placed.ratio * shape.moe_layers - layer, 0.0), 1.0)
        return _covered(here, round(here * shape.experts), spec)
    count = round(placed.ratio * shape.experts)
    if placed.policy in ("uniform", "random") or spec.workload.routing == "balanced":
        return _covered(count / shape.experts, count, spec)
    if spec.workload.routing == "recorded":
        return _covered(_replayed(spec.workload, shape, placed, count), count, spec)
    popular = np.sort(popularity_of(spec, cost, lately=placed.policy == "dynamic"), axis=1)[:, ::-1]
    return _covered(float(popular[:, :count].sum(axis=1).mean()), count, spec)


@lru_cache(maxsize=64)
def _replayed(work: WorkloadSpec, shape: MoEShape, placed: PlacementSpec, count: int) -> float:
    """The share of recorded selections that `count` experts on the device serve.

    frequency: those most selected before; dynamic: as our engine moves them, one of a layer at a time.
    """
    before, then = np.split(recorded_trace(work, shape).draw(2 * _REPLAYED, 0), 2)
    if placed.policy == "frequency":
        hottest = np.argsort(-count_selections(before, shape.experts), kind="stable")
        return float(np.isin(then, hottest[:count]).mean())
    moving = DynamicPlacement((np.arange(shape.experts) < count)[None], every=placed.every)
    served = []
    for now, ids in enumerate(np.concatenate([before, then]), start=1):
        served.append(moving.at_device[0, ids].mean())
        moving.note(0, ids)
        moving.moves(now)
    return float(np.mean(served[_REPLAYED:]))


def _covered(share: float, count: int, spec: RunSpec) -> Coverage:
    """A CUDA graph has no branches: with +c the host is called in every layer that has experts of its own.

    Otherwise it is where a token selects one of them; its selections differ, which is drawing without putting back.
    """
    shape = spec.model.shape
    if spec.engine.cuda_graph:
        return Coverage(device=share, any_on_host=float(count < shape.experts))
    even = comb(count, shape.top_k) / comb(shape.experts, shape.top_k)
    drawn = even if share == count / shape.experts else share**shape.top_k
    return Coverage(device=share, any_on_host=1.0 - drawn**spec.workload.batch)
