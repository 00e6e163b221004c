"""Builds one MoE layer with synthetic weights, held as often as it takes to leave the cache."""

from __future__ import annotations

import copy
from dataclasses import dataclass

from torch import nn

from ktbench.core.rotation import layer_copies
from ktbench.core.spec import ModelSpec
from ktbench.core.weights import expert_bytes
from ktbench.engine.copies import Copies
from ktbench.engine.experts import OriginalExperts
from ktbench.engine.form import read_form
from ktbench.engine.layer import Layer, LayerSystem
from ktbench.engine.load import open_host
from ktbench.engine.packing import Holding, Packing
from ktbench.engine.places import expert_places
from ktbench.engine.protocol import HostRole
from ktbench.engine.step.tape import Tape
from ktbench.engine.synthetic import PassingExperts, WeightPool, materialise_experts, skeleton
from ktbench.engine.threads import Threads


def load_layer(
    model: ModelSpec, *, host: HostRole, keep_original: bool = True, packing: Packing | None = None
) -> LayerSystem:
    """The first MoE layer of a model with its weights in memory.

    `keep_original` holds the experts as Transformers does, for `base`; `packing` holds them packed, for the fused
    operator. Raises ValueError where neither is wanted and for a checkpoint: a layer alone has synthetic weights.
    """
    holding, threads = Holding(original=keep_original, packing=packing), Threads.of(host)
    if model.path is not None:
        raise ValueError(f"model.path={model.path}: a layer alone has synthetic weights, leave model.path=null")
    shape = model.shape
    network = skeleton(model)
    name, place = expert_places(network)[0]
    weights = _Weights(module=network.get_submodule(name), name=name, pool=WeightPool.of(model))
    form = read_form(weights.module)
    original = packed = fused = None
    if keep_original:
        copies = layer_copies(shape.experts * expert_bytes(shape, "bf16"), host.cache_bytes)
        original = Copies([weights.original(number) for number in range(copies)], shape.experts)
    if packing is not None:
        fused = open_host(threads.cpus, holding, Tape())
        copies = layer_copies(shape.experts * expert_bytes(shape, packing.precision), host.cache_bytes)
        packed = Copies([fused.pack(weights.passing(number), form) for number in range(copies)], shape.experts)
    return LayerSystem(model, Layer(number=place.layer, original=original, packed=packed), fused, threads)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Weights:
    """Content for the copies of one experts module, which is on `meta`: copies of equal number are equal."""

    module: nn.Module
    name: str
    pool: WeightPool

    def original(self, number: int) -> OriginalExperts:
        module = copy.deepcopy(self.module)
        materialise_experts(module, f"{self.name}.{number}", self.pool)
        return OriginalExperts(module.requires_grad_(False))

    def passing(self, number: int) -> PassingExperts:
        return PassingExperts(self.module, f"{self.name}.{number}", self.pool)
