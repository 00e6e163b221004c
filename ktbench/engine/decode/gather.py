"""Attention of one token a sequence as matrix products, in PyTorch's operations on any device.

Masks keep a device from its kernels that share a long context among many blocks: one with a mask gives all of it to a
single block of each key-value head. Products do not care.

Letters: S pairs of a sequence and a key-value head, R query heads of one, N positions, D and V widths.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Positions of a part: as many blocks as a GPU has from some thousands on.
PART = 256


def scores_of(queries: Tensor, keys: Tensor) -> Tensor:
    """[S, R, N] float32 of `queries` [S, R, D] and `keys` [S, N, D], not scaled."""
    return _products(queries, keys.mT)


def gather(weights: Tensor, values: Tensor) -> Tensor:
    """[S, R, V] in the type of `values` [S, N, V], of `weights` [S, R, N]; in parts where N is a multiple of `PART`."""
    weights = weights.to(values.dtype)
    pairs, rows, positions = weights.shape
    if positions % PART:
        return torch.bmm(weights, values)
    of_parts = weights.view(pairs, rows, -1, PART).transpose(1, 2).flatten(0, 1)
    sums = _products(of_parts, values.reshape(len(of_parts), PART, -1))
    return sums.view(pairs, -1, rows, sums.shape[2]).sum(1).to(values.dtype)


def _products(left: Tensor, right: Tensor) -> Tensor:
    if left.device.type == "cuda":
        return torch.bmm(left, right, out_dtype=torch.float32)
    return torch.bmm(left.float(), right.float())
