"""Networks for the matching of rules: a few modules by hand, and the known architectures at full width on `meta`."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor, nn

from ktbench.config.freeze import ModelFiles, freeze_model
from ktbench.engine.synthetic import skeleton
from ktbench.spec.inject import InjectRule, InjectSpec
from ktbench.spec.run_spec import ModelSpec
from ktbench.spec.wire import from_plain
from tests.engine.tiny import facts

LAYERS = 3


class PlainExperts(nn.Module):
    """Routed experts as Transformers calls them."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_up_proj = nn.Parameter(torch.zeros(2, 32, 16))
        self.down_proj = nn.Parameter(torch.zeros(2, 16, 16))
        self.act_fn = torch.nn.functional.silu

    def forward(self, hidden: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        return hidden


class Block(nn.Module):
    """Experts, a shared expert of one linear layer, a router and a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = PlainExperts()
        self.shared_expert = nn.Sequential(nn.Linear(16, 16))
        self.gate = nn.Linear(16, 2)
        self.norm = nn.RMSNorm(16, eps=1e-6)


def blocks() -> nn.Module:
    """Three blocks as `layers.0` to `layers.2`, and a head."""
    return nn.ModuleDict({"layers": nn.ModuleList(Block() for _ in range(LAYERS)), "head": nn.Linear(16, 64)})


def rules(*found: dict[str, object]) -> InjectSpec:
    """Rules named a, b, ... by default."""
    named = ({"name": "abcd"[i], "operator": "linear"} | one for i, one in enumerate(found))
    return InjectSpec(name="mine", rules=tuple(InjectRule(**one) for one in named))  # type: ignore[arg-type]


@cache
def sliced(name: str) -> nn.Module:
    """A known architecture at full width, as deep as its first two MoE layers need."""
    content = facts(name)
    layers = content["config"].get("first_k_dense_replace", 0) + 2
    return skeleton(from_plain(freeze_model(content | {"layers": layers}, ModelFiles(), phase="decode"), ModelSpec))
