"""Who serves which selection of one MoE layer: the host role's ids and the device role's, by where experts live.

Letters: T tokens of a call, k experts of a token, E experts.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from ktbench.engine.placing import Move

NOBODY = -1


class Residence:
    """Where the experts of one layer live: `at_device` bool [E], and `served` int64 [2], pairs of host and device.

    Both are static memory that is changed in place only, so that a captured CUDA graph sees every change.
    """

    def __init__(self, at_device: Tensor) -> None:
        """Of `at_device` bool [E], copied, on the device that `split` is to run on. Raises ValueError for others."""
        if at_device.dtype != torch.bool or at_device.ndim != 1:
            raise ValueError(f"at_device is {at_device.dtype} {list(at_device.shape)}, must be bool [experts]")
        self.at_device = at_device.clone()
        self.served = torch.zeros(2, dtype=torch.int64, device=at_device.device)
        self._nobody = torch.full((), NOBODY, dtype=torch.int64, device=at_device.device)

    def split(self, ids: Tensor, out: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        """Host's and device's ids of `ids` [T, k] int64: both [T, k], -1 where the other serves or nobody does.

        Gate weights stay as they are: a pair of nobody's adds nothing. Always the same operations, none of which waits
        for the device or has a shape that depends on data; `out` are buffers for the two.
        """
        hosts, devices = out or (torch.empty_like(ids), torch.empty_like(ids))
        here = self.at_device.take(ids.clamp(min=0))
        torch.where(here, self._nobody, ids, out=hosts)
        torch.where(here, ids, self._nobody, out=devices)
        self.served[0].add_((hosts >= 0).sum())
        self.served[1].add_((devices >= 0).sum())
        return hosts, devices

    def move(self, moves: Iterable[Move]) -> None:
        """Carry out moves of this layer."""
        for move in moves:
            self.at_device[move.come] = True
            self.at_device[move.go] = False
