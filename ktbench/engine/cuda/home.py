"""Homes of experts on a CUDA device."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from ktbench.engine.cuda.experts import DeviceExperts
from ktbench.engine.forms import ExpertStore
from ktbench.engine.placement import Move


class CudaHome:
    """Copies of a layer's experts, those marked in `at_device` [E], in fixed slots on the device."""

    def __init__(self, store: ExpertStore, at_device: NDArray[np.bool_], device: torch.device) -> None:
        self._store = store
        self.backend = DeviceExperts(len(at_device), np.flatnonzero(at_device).tolist(), store, device)

    def move(self, move: Move) -> None:
        """The weights of the one that comes go into the slot of the one that goes."""
        self.backend.move(move.come, move.go, self._store(move.come))
