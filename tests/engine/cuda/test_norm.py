"""Norms of the device role against those of every family, within the rounding of bf16."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeRMSNorm
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextRMSNorm

from ktbench.engine.backend import MoERuntimeState
from ktbench.engine.cuda.norm import DeviceNorm
from ktbench.engine.inject.match import match_rules
from ktbench.engine.load import inject
from ktbench.engine.weight_plan import WeightPlan
from ktbench.spec.engine import EngineSpec
from tests.engine.engines import LEAN, stirred
from tests.engine.families.plain import build
from tests.engine.tiny import DISTINCT, tiny_model

# Of rounding to bf16, whose significand has 8 bits, relative; and of two values that were each rounded once.
ROUNDING = 2.0**-8
ROUNDED = 1.01 * ROUNDING
BOTH_ROUNDED = 2.02 * ROUNDING
OFFSET = (Gemma3RMSNorm, Qwen3NextRMSNorm)


def norm(kind: Any, width: int, seed: int = 0) -> nn.Module:
    made: nn.Module = kind(width, eps=1e-6).bfloat16()
    draw = torch.Generator().manual_seed(seed)
    made.weight.data = (made.weight.detach().float() + torch.randn(width, generator=draw) / 4).bfloat16()
    return made.requires_grad_(False)


def truth(original: nn.Module, x: Tensor) -> Tensor:
    """In float64."""
    wide, weight = x.double(), original.get_parameter("weight").double() + isinstance(original, OFFSET)
    return weight * wide / (wide.pow(2).mean(dim=-1, keepdim=True) + 1e-6).sqrt()


@given(
    kind=st.sampled_from([Qwen3MoeRMSNorm, *OFFSET]),
    width=st.integers(1, 700),
    rows=st.integers(1, 5),
    size=st.sampled_from([1e-4, 1.0, 1e4]),
    seed=st.integers(0, 99),
)
def test_exact_and_as_the_family_within_their_rounding(
    kind: Any, width: int, rows: int, size: float, seed: int
) -> None:
    original = norm(kind, width, seed)
    x = (size * torch.randn(2, rows, width, generator=torch.Generator().manual_seed(seed))).bfloat16()
    seen, exact = DeviceNorm(original)(x), truth(original, x)
    assert seen.dtype == torch.bfloat16
    assert ((seen.double() - exact).abs() <= ROUNDED * exact.abs() + 1e-30).all()
    if kind in OFFSET:  # which rounds once as well
        assert (seen != original(x)).sum() <= 1 + 0.01 * seen.numel()
    assert ((seen.double() - original(x).double()).abs() <= BOTH_ROUNDED * exact.abs() + 1e-30).all()


def test_the_comparison_can_fail() -> None:
    """The offset left out, another epsilon."""
    original = norm(Qwen3NextRMSNorm, 64)
    x = torch.randn(3, 64).bfloat16()
    exact = truth(original, x)
    for change in ({"scale": original.get_parameter("weight").float()}, {"_epsilon": 0.1}):
        changed = DeviceNorm(original)
        for name, value in change.items():
            setattr(changed, name, value)
        assert ((changed(x).double() - exact).abs() > BOTH_ROUNDED * exact.abs()).any()


@pytest.mark.parametrize("name", DISTINCT)
def test_shipped_rules_place_them_in_every_family(name: str) -> None:
    """Where the device is a CUDA device, and in the same places as the operator of CPU cores."""
    heads = {"linear_num_value_heads": 8} if name == "qwen3_next_80b_a3b" else {}  # enough outputs for every rule
    network = stirred(build(tiny_model(name, **heads))).requires_grad_(False)
    originals = dict(network.named_modules())
    wanted = [one.name for one in match_rules(network, LEAN) if one.operator.name == "rms_norm"]
    plan = WeightPlan(engine=EngineSpec(device="cuda"), inject=LEAN)
    inject(network, plan, 1, MoERuntimeState(), None)
    placed = [place for place, module in network.named_modules() if isinstance(module, DeviceNorm)]
    assert len(placed) == len(wanted) > 0
    for place in wanted:
        original = originals[place]
        width = len(original.get_parameter("weight"))
        x = torch.randn(4, width, generator=torch.Generator().manual_seed(width)).bfloat16()
        seen, family = DeviceNorm(original)(x).float(), original(x).float()
        assert ((seen - family).abs() <= 1.02 * BOTH_ROUNDED * family.abs().clamp(min=1e-6)).all()


def test_other_norms_are_refused() -> None:
    with pytest.raises(ValueError, match="computes something other"):
        DeviceNorm(nn.LayerNorm(4, bias=False))
