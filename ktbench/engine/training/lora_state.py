"""The numbers that training changes: LoRA's factors, and the moments that AdamW keeps of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

_LEARNING_RATE = 1e-3


@dataclass(frozen=True, slots=True)
class LoraSnapshot:
    """A copy of the factors, and of the moments of each by name; none before the first step."""

    factors: Sequence[Tensor]
    moments: Sequence[dict[str, Tensor]]


class LoraState:
    """LoRA's factors in a network that PEFT has adapted, and their optimiser."""

    def __init__(self, network: nn.Module) -> None:
        self._named = {name: one for name, one in network.named_parameters() if one.requires_grad}
        self.factors = list(self._named.values())
        self.optimiser = torch.optim.AdamW(self.factors, lr=_LEARNING_RATE)

    @property
    def in_experts(self) -> int:
        """How many of the numbers are of experts."""
        return sum(one.numel() for name, one in self._named.items() if ".experts" in name)

    def drawn(self, seed: int) -> LoraSnapshot:
        """The first values that PEFT gives to LoRA, A uniform (He et al., 2015) and B zero, from seeded numbers."""
        draw = torch.Generator().manual_seed(seed)
        found = [torch.zeros(factor.shape) for factor in self.factors]
        for name, first in zip(self._named, found, strict=True):
            if ".lora_A." in name:
                nn.init.kaiming_uniform_(first, a=math.sqrt(5), generator=draw)
        return LoraSnapshot(found, [{} for _ in found])

    def kept(self) -> LoraSnapshot:
        """What is there now."""
        moments = [{name: one.clone() for name, one in self._moments(factor).items()} for factor in self.factors]
        return LoraSnapshot([factor.detach().clone() for factor in self.factors], moments)

    def restore(self, kept: LoraSnapshot) -> None:
        """Back to what was kept; there are no gradients then."""
        with torch.no_grad():
            for factor, value, moments in zip(self.factors, kept.factors, kept.moments, strict=True):
                factor.copy_(value)
                for name, moment in self._moments(factor).items():
                    moment.copy_(moments[name]) if name in moments else moment.zero_()
        self.optimiser.zero_grad()

    def _moments(self, factor: Tensor) -> dict[str, Tensor]:
        found: dict[str, Tensor] = self.optimiser.state.get(factor, {})
        return found
