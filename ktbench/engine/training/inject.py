"""Puts packed, differentiable experts into a loaded Transformers model, for PEFT and its trainers."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from ktbench import _kernels
from ktbench.engine.decode.program import CallRecorder
from ktbench.engine.experts import OriginalExperts
from ktbench.engine.forms import expert_positions, read_form
from ktbench.engine.fused import FusedHost
from ktbench.engine.inject.match import match_rules
from ktbench.engine.training.experts import TrainableExperts
from ktbench.engine.weight_plan import Packing
from ktbench.spec.inject import InjectRule, InjectSpec

# What shipped rules call `experts`.
ROUTED_EXPERTS = InjectSpec(
    name="experts", rules=(InjectRule(name="experts", class_name=".*Experts", module=".*", operator="experts"),)
)


_PLAIN = Packing()


def inject_experts(
    network: PreTrainedModel,
    rules: InjectSpec = ROUTED_EXPERTS,
    *,
    packing: Packing = _PLAIN,
    kernels: dict[str, Any] | None = None,
    recompute: bool = True,
) -> PreTrainedModel:
    """Replaces what the rules match, packs one layer after the other and lets the original weights go.

    `kernels` are the options of a call of the kernels, by default the fastest that this machine grants with dynamic
    scheduling. Raises ValueError for rules that do not fit and for operators that have no backward pass.
    """
    others = sorted({rule.operator for rule in rules.rules} - {"experts"})
    if others:
        raise ValueError(f"inject={rules.name}: {', '.join(others)} cannot be trained through, only experts can")
    precisions = {match.name: match.rule.precision for match in match_rules(network, rules)}
    cpus = sorted(os.sched_getaffinity(0))[: torch.get_num_threads()]  # PyTorch's own threads run the experts
    host = FusedHost(tuple(cpus), packing, CallRecorder())
    for name, position in expert_positions(network):
        if name not in precisions:
            continue
        module = network.get_submodule(name)
        packed = host.pack(OriginalExperts(module).matrices, read_form(module), position.layer, precisions[name])
        packed.kernels = fastest_kernels() if kernels is None else kernels
        network.set_submodule(name, TrainableExperts(packed, read_form(module), recompute=recompute))
        _release(module)
    return network


def fastest_kernels() -> dict[str, Any]:
    """Options of a call: the fastest instruction sets that this machine grants, dynamic scheduling."""
    missing = _kernels.grants()
    if missing.get("avx512") == "":
        return {"avx512": True, "amx": missing["amx"] == "", "dynamic": True}
    return {"avx2": True, "dynamic": True} if missing.get("avx2") == "" else {"isa": "reference", "dynamic": True}


def _release(module: nn.Module) -> None:
    """Its weights go at once, whoever still holds the module."""
    for parameter in module.parameters():
        parameter.data = parameter.data.new_empty(0)
