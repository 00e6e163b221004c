"""A model in training: batches, gradients, the two optimisers, the schedule and the balancing of experts."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from transformers import DeepseekV3ForCausalLM

from ktbench.eval.nano.batches import IGNORED, loss, parts
from ktbench.eval.nano.checkpoint import nano_config
from ktbench.eval.nano.experts import balance, use_wide_experts
from ktbench.eval.nano.optimizer import Muon, adam, split_parameters
from ktbench.eval.nano.tasks import training
from ktbench.eval.nano.team import ALONE, Team

ROWS = 64
WARM_UP = 100
BALANCE = 0.001  # DeepSeek-V3's step of the balancing bias


def new_model(seed: int, layers: int = 12) -> DeepseekV3ForCausalLM:
    """An untrained nano model in float32."""
    torch.manual_seed(seed)
    model = DeepseekV3ForCausalLM(nano_config(layers))
    model.train()
    return model


class Training:
    """One process's share of a training; the same seed and machine give the same weights, whatever the team's size."""

    def __init__(self, model: DeepseekV3ForCausalLM, *, steps: int, seed: int, team: Team = ALONE) -> None:
        self.model, self.steps, self.team = model, steps, team
        self.step = 0
        self.tokens = 0
        self._experts = use_wide_experts(model)
        self._questions = training(seed)
        self._inside, outside = split_parameters(model)
        self._own = self._inside[team.rank :: team.size]
        self._optimizers: tuple[torch.optim.Optimizer, ...] = (Muon(self._own), adam(outside))
        self._groups = [group for optimizer in self._optimizers for group in optimizer.param_groups]
        self._peaks = [group["lr"] for group in self._groups]

    def rate(self) -> float:
        """Share of the peak learning rate: up in a line over `WARM_UP` steps, then down along a cosine to 0."""
        warm = min(WARM_UP, self.steps // 4)
        if self.step < warm:
            return (self.step + 1) / warm
        return (1 + math.cos(math.pi * (self.step - warm) / (self.steps - warm))) / 2

    def advance(self, rows: int = ROWS) -> float:
        """One step on `rows` examples; mean loss of an answer's byte in nats, before the step."""
        batch = parts(self._questions, rows)
        wanted = sum(int((labels != IGNORED).sum()) for _, labels in batch)
        total = torch.zeros(1)
        for ids, labels in batch[self.team.rank :: self.team.size]:
            summed = loss(self.model, ids, labels)
            torch.autograd.backward(summed / wanted)
            total += summed.detach()
        self.tokens += sum(ids.numel() for ids, _ in batch)
        self._update(total)
        return float(total) / wanted

    def _update(self, total: Tensor) -> None:
        """Step with the gradients of all; each process orthogonalises its own share of the matrices."""
        for group, peak in zip(self._groups, self._peaks, strict=True):
            group["lr"] = peak * self.rate()
        gradients = [parameter.grad for parameter in self.model.parameters() if parameter.grad is not None]
        self.team.add_up([total, *gradients, *(experts.loads for experts in self._experts)])
        for optimizer in self._optimizers:
            optimizer.step()
        self.model.zero_grad()
        self._exchange()
        balance(self.model, BALANCE)
        self.step += 1

    @torch.no_grad()
    def _exchange(self) -> None:
        for rank in range(self.team.size):
            if rank != self.team.rank:
                for parameter in self._inside[rank :: self.team.size]:
                    parameter.zero_()
        self.team.add_up(self._inside)
