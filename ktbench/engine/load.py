"""Builds the engine: a slice or a checkpoint, with operators in the place of the modules that rules name."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from torch import nn
from transformers import PreTrainedModel

from ktbench.engine.checkpoint import read_checkpoint
from ktbench.engine.experts import OriginalExperts
from ktbench.engine.form import read_form
from ktbench.engine.gguf.inspecting import is_gguf
from ktbench.engine.gguf.reading import GgufModel
from ktbench.engine.hybrid import HybridEngine
from ktbench.engine.injecting import inject
from ktbench.engine.matrices import ExpertStore, LinearBlocks, PackableStore
from ktbench.engine.operator import ExpertsOperator, Pass
from ktbench.engine.packing import Holding, Packing
from ktbench.engine.parts import Parts
from ktbench.engine.places import expert_places, is_experts
from ktbench.engine.protocol import HostRole
from ktbench.engine.step.tape import Tape
from ktbench.engine.synthetic import PassingExperts, WeightPool, materialise, materialise_experts, skeleton
from ktbench.engine.threads import Threads
from ktbench.engine.work import dense_params
from ktbench.spec.run_spec import ModelSpec

if TYPE_CHECKING:
    from ktbench.engine.cuda.role import CudaRole
    from ktbench.engine.fused import FusedHost


def load(
    model: ModelSpec,
    *,
    cores: int | None = None,
    keep_original: bool = True,
    packing: Packing | None = None,
) -> HybridEngine:
    """The engine with its weights in memory, its roles on shared cores.

    `keep_original` holds the experts as Transformers does, for `base`; `packing` holds them packed, for the fused
    operator. `cores` is how many cores the engine may use (None: all that this thread may run on). Raises ValueError
    for a checkpoint that is not whole.
    """
    host = HostRole(cores=cores or len(os.sched_getaffinity(0)))
    return load_engine(model, Holding(original=keep_original, packing=packing), host)


def load_engine(model: ModelSpec, holding: Holding, host: HostRole) -> HybridEngine:
    """The engine holding what `holding` says, on the cores of `host`; see `load_parts`."""
    return HybridEngine(model, load_parts(model, holding, host))


def load_parts(model: ModelSpec, holding: Holding, host: HostRole) -> Parts:
    """What an engine is made of, holding what `holding` says, on the cores of `host`.

    Where only packed experts stay, synthetic ones and those of a GGUF file are packed one by one, those of a folder
    layer by layer. Raises ValueError for a checkpoint that is not whole and for rules that do not fit.
    """
    network, store_of, blocks_of = _weights(model, holding)
    network.requires_grad_(False)
    threads, state, params = Threads.of(host), Pass(), dense_params(network)
    roles = threads.roles(holding.engine)
    experts = None if holding.packing is None else open_host(roles.host, holding, state.tape)
    device, attention = inject(network, holding, len(roles.device), state, blocks_of)
    cuda = open_cuda(state.tape) if holding.engine.device == "cuda" else None
    operators = _place_operators(network, store_of, holding.original, experts, cuda, state)
    if cuda is not None:
        network.to(cuda.device)  # type: ignore[arg-type]
    return Parts(
        network=network,
        operators=operators,
        state=state,
        host=experts,
        device=device,
        attention=attention if cuda is None else cuda.attention,
        cuda=cuda,
        threads=threads,
        dense_params=params,
    )


# Gives what an experts module is packed from, by its name.
StoreOf = Callable[[str, nn.Module], PackableStore]


def _weights(model: ModelSpec, holding: Holding) -> tuple[PreTrainedModel, StoreOf, LinearBlocks | None]:
    if model.path is None:
        return *_synthetic(model, holding.original), None
    if is_gguf(model.path):
        read = GgufModel(model, holding)
        return read.network, read.experts, read.linear_blocks
    return read_checkpoint(model.path), _original, None


def open_host(cpus: tuple[int, ...], holding: Holding, tape: Tape) -> FusedHost:
    """Where the fused operator packs and runs experts."""
    from ktbench.engine.fused import FusedHost  # needs the kernel extension, base does not

    assert holding.packing is not None
    return FusedHost(cpus, holding.packing, tape, apart=holding.engine.apart)


def open_cuda(tape: Tape) -> CudaRole:
    """The device role on a CUDA device."""
    from ktbench.engine.cuda.role import CudaRole

    return CudaRole.open(tape)


def _place_operators(
    network: PreTrainedModel,
    store_of: StoreOf,
    keep_original: bool,
    host: FusedHost | None,
    cuda: CudaRole | None,
    state: Pass,
) -> list[ExpertsOperator]:
    operators = []
    for name, place in expert_places(network):
        module = network.get_submodule(name)
        store = store_of(name, module)
        kept = OriginalExperts(module) if keep_original else None
        packed = host.pack(store, read_form(module), place.layer) if host is not None else None
        original, fused = (kept, packed) if cuda is None else cuda.backends(kept, packed, place.layer)
        operators.append(ExpertsOperator(place, state, original=original, fused=fused))
        # What is not kept is let go here, before the next layer.
        network.set_submodule(name, operators[-1])
        del module, store
    return operators


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
