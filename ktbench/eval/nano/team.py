"""Processes that train one model together: each has one thread and a part of every batch, and sums are shared.

Two cores are used better this way than by two threads inside each small operation, all the more on a busy machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.context import SpawnContext
from multiprocessing.synchronize import Barrier

import torch
from torch import Tensor

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
