"""Which share of the selected experts lives at the device, layer by layer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import comb

import numpy as np

from ktbench.engine.placement import DynamicPlacement
from ktbench.engine.workload.recorded import count_selections
from ktbench.sim.calibration import Calibration
from ktbench.sim.routing import popularity_of, recorded_trace
from ktbench.spec.engine import PlacementSpec
from ktbench.spec.run_spec import RunSpec, WorkloadSpec
from ktbench.spec.shape import MoEShape

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
