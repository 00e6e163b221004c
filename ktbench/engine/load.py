"""Builds the engine: a slice with synthetic weights or a checkpoint, its experts held in the layouts that are needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from torch import nn
from transformers import PreTrainedModel

from ktbench.core.shape import MoEShape
from ktbench.core.spec import ModelSpec
from ktbench.engine.checkpoint import read_checkpoint
from ktbench.engine.experts import ExpertStore, OriginalExperts
from ktbench.engine.hybrid import HybridEngine, usable_cores
from ktbench.engine.operator import ExpertsOperator, Pass
from ktbench.engine.synthetic import PassingExperts, WeightPool, materialise, materialise_experts, skeleton

if TYPE_CHECKING:
    from ktbench.engine.fused import FusedHost

SPIN_US = 20
_INITIALIZER_RANGE = 0.02  # Transformers' default


def load(
    model: ModelSpec,
    *,
    threads: int | None = None,
    spin_us: int = SPIN_US,
    keep_original: bool = True,
    keep_packed: bool = False,
) -> HybridEngine:
    """The engine with its weights in memory.

    `keep_original` holds the experts as Transformers does, for `base`; `keep_packed` holds them packed, for the fused
    kernel. Where only the packed ones stay, synthetic experts are packed one by one, those of a checkpoint layer by
    layer. `threads` counts the cores to pack on (None: all that the process may use); `spin_us` is how long an idle
    thread of the pool spins before it parks, in µs. Raises ValueError for a folder that is not whole.
    """
    if not (keep_original or keep_packed):
        raise ValueError("keep_original=False and keep_packed=False leave nothing to run the experts with")
    keep_packed = keep_packed and not model.shape.expert_biases
    host = _open_host(threads or usable_cores(), spin_us) if keep_packed else None
    if model.path is None:
        network, store_of = _synthetic(model, keep_original)
    else:
        network, store_of = read_checkpoint(model), _original
    network.requires_grad_(False)
    state = Pass()
    operators = list(_inject(network, model.shape, store_of, keep_original, host, state))
    return HybridEngine(model, network, operators, state, host)


# Gives the store of an experts module by name.
StoreOf = Callable[[str, nn.Module], ExpertStore]


def _open_host(threads: int, spin_us: int) -> FusedHost:
    from ktbench.engine.fused import FusedHost  # needs the kernel extension, base does not

    return FusedHost(threads, spin_us)


def _synthetic(model: ModelSpec, keep_original: bool) -> tuple[PreTrainedModel, StoreOf]:
    network = skeleton(model)
    pool = WeightPool(model.seed, model.config.get("initializer_range", _INITIALIZER_RANGE))
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


def _inject(
    network: PreTrainedModel, shape: MoEShape, store_of: StoreOf, keep_original: bool, host: FusedHost | None, state: Pass
) -> Iterator[ExpertsOperator]:
    """Puts an operator in the place of every experts module; what is not kept is let go before the next layer."""
    names = [name for name, module in network.named_modules() if is_experts(module)]
    for place, name in enumerate(names):
        module = network.get_submodule(name)
        store = store_of(name, module)
        operator = ExpertsOperator(
            layer=_layer_number(name),
            place=place,
            is_last=place == len(names) - 1,
            original=OriginalExperts(module) if keep_original else None,
            fused=host.pack(store, shape) if host is not None else None,
            state=state,
        )
        network.set_submodule(name, operator)
        yield operator


def _layer_number(name: str) -> int:
    """`model.layers.3.mlp.experts` is in decoder layer 3."""
    return int(name.split("layers.")[1].split(".")[0])
