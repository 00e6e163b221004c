"""Experts that are not of an `ExpertsForm` are refused, named, with what differs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, silu
from transformers.models.step3p7.configuration_step3p7 import Step3p7TextConfig
from transformers.models.step3p7.modeling_step3p7 import Step3p7Experts

from ktbench.engine.forms import ExpertsForm, Glu, read_form


class Experts(nn.Module):
    """Experts as most families have them; subclasses change one thing."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_up_proj = nn.Parameter(torch.empty(4, 6, 8))
        self.down_proj = nn.Parameter(torch.empty(4, 8, 3))
        self.act_fn: Any = silu

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        raise NotImplementedError


class ExactGeluExperts(Experts):
    def __init__(self) -> None:
        super().__init__()
        self.act_fn = gelu


class UnclampedExperts(Experts):
    limit = 7.0


class LooserExperts(Experts):
    limit = 7.0

    def _apply_gate(self, both: Tensor) -> Tensor:
        gate, up = both.chunk(2, dim=-1)
        return silu(gate.clamp(max=8.0)) * up.clamp(-7, 7)


class SwappedExperts(Experts):
    def _apply_gate(self, both: Tensor) -> Tensor:
        up, gate = both.chunk(2, dim=-1)
        return silu(gate) * up


class CrookedExperts(Experts):
    def __init__(self) -> None:
        super().__init__()
        self.gate_up_proj = nn.Parameter(torch.empty(4, 8, 6))


class UngatedExperts(Experts):
    has_gate = False


class NormedExperts(Experts):
    has_post_expert_norm = True


class ScaledExperts(Experts):
    def __init__(self) -> None:
        super().__init__()
        self.scales = nn.Parameter(torch.ones(4))


class FlatExperts(Experts):
    def __init__(self) -> None:
        super().__init__()
        self.down_proj = nn.Parameter(torch.empty(32, 3))


class OtherCallExperts(Experts):
    def forward(self, hidden_states: Tensor) -> Tensor:  # type: ignore[override]
        raise NotImplementedError


MISFITS = {
    ExactGeluExperts: "activates by gelu",
    UnclampedExperts: "clamps its activation otherwise than gate and up to limit=7.0",
    LooserExperts: "clamps its activation otherwise than gate and up to limit=7.0",
    SwappedExperts: "which is neither silu nor gelu_tanh times up",
    CrookedExperts: r"gate_up_proj is \(4, 8, 6\), down_proj asks for \(4, 6, 8\)",
    UngatedExperts: "has no gate",
    NormedExperts: "norms the output of each expert",
    ScaledExperts: "has parameters of unknown meaning: scales",
    FlatExperts: "has no down_proj of three dimensions",
    OtherCallExperts: r"is called with \(hidden_states\), not with \(hidden, ids, weights\)",
}


def test_the_module_that_misfits_change_fits() -> None:
    assert read_form(Experts()) == ExpertsForm(experts=4, hidden=8, ffn=3)


@pytest.mark.parametrize("kind", MISFITS, ids=lambda kind: kind.__name__)
def test_what_does_not_fit_is_named(kind: type[Experts]) -> None:
    with pytest.raises(ValueError, match=rf"^{kind.__name__}: .*{MISFITS[kind]}") as refused:
        read_form(kind())
    assert "\n" not in str(refused.value)


def test_limits_that_act_after_the_activation_fit_only_where_there_are_none() -> None:
    config = Step3p7TextConfig(hidden_size=64, moe_intermediate_size=32)
    with torch.device("meta"):
        assert read_form(Step3p7Experts(config)).glu == Glu()
        with pytest.raises(ValueError, match="Step3p7Experts: clamps its activation otherwise"):
            read_form(Step3p7Experts(config, swiglu_limit=7.0))
