"""Where a network has its routed experts."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn
from transformers import PreTrainedModel

from ktbench.engine.form import read_form, takes_routing
from ktbench.engine.operator import Place
from ktbench.engine.step.watch import layer_of

_CLASS = "Experts"


def is_experts(module: nn.Module) -> bool:
    """Whether a module holds the routed experts of one layer, as every MoE family in Transformers 5 has one."""
    return type(module).__name__.endswith(_CLASS) and takes_routing(module)


def expert_places(network: PreTrainedModel) -> list[tuple[str, Place]]:
    """Name and place of every experts module: `model.layers.3.mlp.experts` is in decoder layer 3.

    Raises ValueError naming the first class of experts that is not of an `ExpertsForm`, or the network where it has no
    experts at all.
    """
    names = list(_checked(network))
    layers = [layer_of(name) or 0 for name in names]
    last = len(names) - 1
    return [
        (name, Place(layer=layer, number=number, is_last=number == last))
        for number, (name, layer) in enumerate(zip(names, layers, strict=True))
    ]


def _checked(network: PreTrainedModel) -> Iterator[str]:
    found = {name: module for name, module in network.named_modules() if type(module).__name__.endswith(_CLASS)}
    # Shared experts may be a module of such a name too, but never the only one.
    routed = {name: module for name, module in found.items() if takes_routing(module)} or found
    if not routed:
        raise ValueError(f"{type(network).__name__}: has no module whose class is named ...{_CLASS}")
    for name, module in routed.items():
        read_form(module)
        yield name
