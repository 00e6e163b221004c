"""Builds the engine: a slice or a checkpoint, its experts held in the layouts that are needed."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from torch import nn
from transformers import PreTrainedModel

from ktbench.core.spec import ModelSpec
from ktbench.engine.checkpoint import read_checkpoint
from ktbench.engine.experts import ExpertStore, OriginalExperts
from ktbench.engine.hybrid import HybridEngine
from ktbench.engine.operator import ExpertsOperator, Pass, Place
from ktbench.engine.packing import Packing
from ktbench.engine.synthetic import PassingExperts, WeightPool, materialise, materialise_experts, skeleton

if TYPE_CHECKING:
    from ktbench.engine.fused import FusedHost


def load(
    model: ModelSpec,
    *,
    cores: int | None = None,
    keep_original: bool = True,
    packing: Packing | None = None,
) -> HybridEngine:
    """The engine with its weights in memory.

    `keep_original` holds the experts as Transformers does, for `base`; `packing` holds them packed, for the fused
    operator. Where only the packed ones stay, synthetic experts are packed one by one, those of a checkpoint layer by
    layer. `cores` is how many cores the engine may use (None: all that this thread may run on). Raises ValueError for a
    folder that is not whole.
    """
    if not keep_original and packing is None:
        raise ValueError("keep_original=False and packing=None leave nothing to run the experts with")
    cores = cores or len(os.sched_getaffinity(0))
    host = None if packing is None or model.shape.expert_biases else open_host(cores, packing)
    if model.path is None:
        network, store_of = _synthetic(model, keep_original)
    else:
        network, store_of = read_checkpoint(model.path), _original
    network.requires_grad_(False)
    state = Pass()
    operators = []
    for name, place in expert_places(network):
        module = network.get_submodule(name)
        store = store_of(name, module)
        original = OriginalExperts(module) if keep_original else None
        fused = host.pack(store, model.shape) if host is not None else None
        operators.append(ExpertsOperator(place, state, original=original, fused=fused))
        # What is not kept is let go here, before the next layer.
        network.set_submodule(name, operators[-1])
        del module, store
    return HybridEngine(model, network, operators, state, host, cores)


# Gives the store of an experts module by name.
StoreOf = Callable[[str, nn.Module], ExpertStore]


def open_host(threads: int, packing: Packing) -> FusedHost:
    """Where the fused operator packs and runs experts."""
    from ktbench.engine.fused import FusedHost  # needs the kernel extension, base does not

    return FusedHost(threads, packing)


def _synthetic(model: ModelSpec, keep_original: bool) -> tuple[PreTrainedModel, StoreOf]:
    network = skeleton(model)
    pool = WeightPool.of(model)
    materialise(network, pool, is_experts)

    def store_of(name: str, module: nn.Module) -> ExpertStore:
        if not keep_original:
            return PassingExperts(module, name, pool)
        materialise_experts(module, name, pool)
        return _original(name, module)

    return network, store_of


def _original(_name: str, module: nn.Module) -> ExpertStore:
    return OriginalExperts(module).matrices


def is_experts(module: nn.Module) -> bool:
    """Whether a module holds the fused routed experts of one layer, as every MoE family in Transformers 5 does."""
    return type(module).__name__.endswith("Experts") and hasattr(module, "gate_up_proj")


def expert_places(network: PreTrainedModel) -> list[tuple[str, Place]]:
    """Name and place of every experts module: `model.layers.3.mlp.experts` is in decoder layer 3."""
    names = [name for name, module in network.named_modules() if is_experts(module)]
    layers = [int(name.partition("layers.")[2].partition(".")[0]) for name in names]
    last = len(names) - 1
    return [
        (name, Place(layer=layer, number=number, is_last=number == last))
        for number, (name, layer) in enumerate(zip(names, layers, strict=True))
    ]
