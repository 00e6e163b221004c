"""A model in training: processes that share batches, gradients, two optimisers, the schedule and expert balancing."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from multiprocessing.context import SpawnContext
from multiprocessing.synchronize import Barrier
from typing import Any

import torch
from torch import Tensor
from transformers import DeepseekV3ForCausalLM

from examples.nano.data import IGNORED, loss, parts, training_questions
from examples.nano.model import balance, group_experts
from examples.nano.optimizer import Muon, adam, split_parameters

PATIENCE_S = 7200.0  # for the others to come, who may be paused; then one of them has died


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
DECAY = 0.4  # share of the steps, at the end, in which the learning rate falls
BALANCE = 0.001  # DeepSeek-V3's step of the balancing bias


class Training:
    """One process's share of a training; the same seed and machine give the same weights, whatever the team's size."""

    def __init__(self, model: DeepseekV3ForCausalLM, *, steps: int, seed: int, team: Team = ALONE) -> None:
        self.model, self.steps, self.team = model, steps, team
        self.step = 0
        self.tokens = 0
        self.took_s = self.cpu_s = 0.0  # on the clock, and of all processes together
        self._cpu_before_s = time.process_time()
        self._experts = group_experts(model)
        self._questions = training_questions(seed)
        self._inside, outside = split_parameters(model)
        self._own = self._inside[team.rank :: team.size]
        self._optimizers: tuple[torch.optim.Optimizer, ...] = (Muon(self._own), adam(outside))
        self._peaks = [group["lr"] for group in self._groups()]

    def rate(self) -> float:
        """Share of the peak learning rate: up in a line over `WARM_UP` steps, level, and down in a line to 0.

        A schedule of that form learns as much as a cosine (Hägele et al. 2024, "Scaling Laws and Compute-Optimal
        Training Beyond Fixed Training Durations").
        """
        warm = min(WARM_UP, self.steps / 4)
        return min((self.step + 1) / warm, 1.0, (self.steps - self.step) / (DECAY * self.steps))

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
        for group, peak in zip(self._groups(), self._peaks, strict=True):
            group["lr"] = peak * self.rate()
        gradients = [parameter.grad for parameter in self.model.parameters() if parameter.grad is not None]
        cpu_s = self._spent_s()
        self.team.add_up([total, cpu_s, *gradients, *(experts.loads for experts in self._experts)])
        self.cpu_s += float(cpu_s)
        for optimizer in self._optimizers:
            optimizer.step()
        self.model.zero_grad()
        self._exchange()
        balance(self.model, BALANCE)
        self.step += 1

    def _groups(self) -> list[dict[str, Any]]:
        return [group for optimizer in self._optimizers for group in optimizer.param_groups]

    def _spent_s(self) -> Tensor:
        """CPU seconds of this process since the last call."""
        before, self._cpu_before_s = self._cpu_before_s, time.process_time()
        return torch.tensor([self._cpu_before_s - before])

    @torch.no_grad()
    def _exchange(self) -> None:
        for rank in range(self.team.size):
            if rank != self.team.rank:
                for parameter in self._inside[rank :: self.team.size]:
                    parameter.zero_()
        self.team.add_up(self._inside)

    def state(self) -> dict[str, Any]:
        """All that `resume` needs to go on from here."""
        return {
            "steps": self.steps,
            "step": self.step,
            "tokens": self.tokens,
            "took_s": self.took_s,
            "cpu_s": self.cpu_s,
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self._optimizers],
        }

    def resume(self, state: dict[str, Any], rows: int = ROWS) -> None:
        """Go on from the state of a training with the same arguments, whose steps had `rows` examples."""
        if state["steps"] != self.steps:
            raise ValueError(f"the state is of a training of {state['steps']} steps, this one has {self.steps}")
        self.step, self.tokens = state["step"], state["tokens"]
        self.took_s, self.cpu_s = state["took_s"], state["cpu_s"]
        self.model.load_state_dict(state["model"])
        for optimizer, kept in zip(self._optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(kept)
        deque(islice(self._questions, self.step * rows), maxlen=0)  # were shown
