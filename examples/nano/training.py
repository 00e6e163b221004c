"""A model in training: processes that share batches, gradients, two optimisers, the schedule and expert balancing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.context import SpawnContext
from multiprocessing.synchronize import Barrier

import torch
from torch import Tensor
from transformers import DeepseekV3ForCausalLM

from examples.nano.data import IGNORED, loss, parts, training_questions
from examples.nano.model import balance, use_wide_experts
from examples.nano.optimizer import Muon, adam, split_parameters

PATIENCE_S = 600.0  # for the others to come; then one of them has died


@dataclass(frozen=True, kw_only=True, slots=True)
class Team:
    """A process's place among `size` of them; `rows` is memory of all, float32 [size, numbers that fit]."""

    rank: int
    size: int
    rows: Tensor
    barrier: Barrier | None

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        """Replace float32 tensors by their sums over the team, added in the order of ranks: the same bits for all."""
        if self.barrier is None:
            return
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        self.rows[self.rank, : len(flat)] = flat
        self.barrier.wait(PATIENCE_S)
        torch.sum(self.rows[:, : len(flat)], dim=0, out=flat)
        self.barrier.wait(PATIENCE_S)
        for tensor, total in zip(tensors, flat.split_with_sizes([tensor.numel() for tensor in tensors]), strict=True):
            tensor.copy_(total.view_as(tensor))


ALONE = Team(rank=0, size=1, rows=torch.empty(1, 0), barrier=None)


def teams(context: SpawnContext, size: int, numbers: int) -> list[Team]:
    """The places of `size` processes that add up at most `numbers` numbers at a time."""
    rows, barrier = torch.zeros(size, numbers), context.Barrier(size)
    rows.share_memory_()  # type: ignore[no-untyped-call]
    return [Team(rank=rank, size=size, rows=rows, barrier=barrier) for rank in range(size)]


ROWS = 64
WARM_UP = 100
BALANCE = 0.001  # DeepSeek-V3's step of the balancing bias


class Training:
    """One process's share of a training; the same seed and machine give the same weights, whatever the team's size."""

    def __init__(self, model: DeepseekV3ForCausalLM, *, steps: int, seed: int, team: Team = ALONE) -> None:
        self.model, self.steps, self.team = model, steps, team
        self.step = 0
        self.tokens = 0
        self._experts = use_wide_experts(model)
        self._questions = training_questions(seed)
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
