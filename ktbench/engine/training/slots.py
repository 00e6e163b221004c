"""Slots: the (token, expert) pairs of a call in the order in which experts are multiplied.

Letters: T tokens, k experts of a token, E experts, S slots.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class LoraSlots:
    """Expert after expert, tokens in order within one.

    `token` int32 [S] is each slot's token, `place` int64 [S] its place in the flat [T, k], `first` int32 [E + 1] where
    the slots of an expert begin; `at` int64 [T, k] is the slot of each pair, 0 where `missing` bool [T, k] says that
    there is none, an id of -1.
    """

    token: Tensor
    place: Tensor
    first: Tensor
    at: Tensor
    missing: Tensor

    @classmethod
    def of(cls, ids: Tensor, experts: int) -> LoraSlots:
        """Those of `ids` int64 [T, k]. Raises IndexError for an id that is neither -1 nor an expert."""
        flat = ids.flatten()
        if flat.numel() and not (int(flat.min()) >= -1 and int(flat.max()) < experts):
            raise IndexError(f"expert ids are {int(flat.min())} to {int(flat.max())}: allowed are -1 to {experts - 1}")
        missing = flat < 0
        order = flat.argsort(stable=True)[int(missing.sum()) :]
        counts = torch.bincount(flat[order], minlength=experts)
        first = torch.zeros(experts + 1, dtype=torch.int32)
        first[1:] = counts.cumsum(0)
        at = torch.zeros_like(flat).scatter_(0, order, torch.arange(len(order)))
        return cls(
            token=(order // ids.shape[1]).int(),
            place=order,
            first=first,
            at=at.view_as(ids),
            missing=missing.view_as(ids),
        )

    def __len__(self) -> int:
        return len(self.token)

    @property
    def rows(self) -> Tensor:
        """Each slot as its own row, int32 [S]."""
        return torch.arange(len(self), dtype=torch.int32)

    def groups(self) -> Iterator[tuple[int, slice]]:
        """Every expert that has slots, and which they are."""
        first = self.first.tolist()
        for expert, (begin, end) in enumerate(pairwise(first)):
            if end > begin:
                yield expert, slice(begin, end)

    def add_up(self, values: Tensor, weights: Tensor | None = None) -> Tensor:
        """[T, N]: the sum over each token's slots of `values` [S, N], weighted by `weights` [T, k]."""
        kept = torch.ones(self.at.shape, dtype=values.dtype) if weights is None else weights.to(values.dtype)
        if not len(self):
            return values.new_zeros(len(self.at), values.shape[1])
        kept = kept.masked_fill(self.missing, 0)
        return torch.nn.functional.embedding_bag(self.at, values, mode="sum", per_sample_weights=kept)

    def of_places(self, values: Tensor) -> Tensor:
        """[S] of `values` [T, k]."""
        return values.flatten()[self.place]

    def to_places(self, values: Tensor) -> Tensor:
        """[T, k] of `values` [S]; zeros where there is no expert."""
        flat = values.new_zeros(self.at.numel())
        return flat.index_copy_(0, self.place, values).view_as(self.at)
