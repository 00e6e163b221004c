"""Experts for training: all of them as one wide SwiGLU with gates, which a CPU runs faster than 32 small ones.

T tokens, H hidden size, E experts, I intermediate size.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import DeepseekV3ForCausalLM
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Experts


class WideExperts(nn.Module):
    """Takes the place of `DeepseekV3Experts`, with its parameters; counts in `loads` [E] the tokens each was given."""

    def __init__(self, experts: DeepseekV3Experts) -> None:
        super().__init__()
        self.gate_up_proj, self.down_proj = experts.gate_up_proj, experts.down_proj
        self.loads = torch.zeros(experts.num_experts)
        self._spread_EN = torch.eye(experts.num_experts).repeat_interleave(experts.intermediate_dim, dim=1)

    def forward(self, x_TH: Tensor, ids: Tensor, weights: Tensor) -> Tensor:  # noqa: N803
        """The weighted sum of the chosen experts [T, H]; those not chosen have gate 0. ids and weights are [T, k]."""
        gates_TE = weights.new_zeros(len(x_TH), len(self.loads)).scatter(1, ids, weights)  # noqa: N806
        self.loads += torch.bincount(ids.flatten(), minlength=len(self.loads))
        gate_EIH, up_EIH = self.gate_up_proj.chunk(2, dim=1)  # noqa: N806
        inner = functional.silu(_linear(x_TH, gate_EIH)) * _linear(x_TH, up_EIH)
        # A product with zeros and ones repeats each gate faster than broadcasting does, backwards above all.
        gated = inner * (gates_TE @ self._spread_EN)
        return functional.linear(gated, self.down_proj.permute(1, 0, 2).flatten(1))


def _linear(x_TH: Tensor, weight_EIH: Tensor) -> Tensor:  # noqa: N803
    return functional.linear(x_TH, weight_EIH.flatten(0, 1))


def use_wide_experts(model: DeepseekV3ForCausalLM) -> list[WideExperts]:
    """Put `WideExperts` into every layer; returns them in the order of layers."""
    for layer in model.model.layers:
        layer.mlp.experts = WideExperts(layer.mlp.experts)
    return [layer.mlp.experts for layer in model.model.layers]


@torch.no_grad()
def balance(model: DeepseekV3ForCausalLM, step: float) -> None:
    """Move each expert's bias by `step` towards the mean load and clear the loads (DeepSeek-V3, section 2.1.2)."""
    for layer in model.model.layers:
        loads = layer.mlp.experts.loads
        layer.mlp.gate.e_score_correction_bias += step * (loads.mean() - loads).sign()
        loads.zero_()
