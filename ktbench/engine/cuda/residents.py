"""Experts that live with a CUDA device: how a layer's come there, and how one takes the place of another beside steps.

The classes implement `ktbench.engine.device_placement.DeviceExperts`; `at_device` [E] marks the experts of a layer.
Packed bytes cross the link in `transfers`, a stream of its own, which nobody waits for.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ktbench.engine.cuda.experts import SlotExperts
from ktbench.engine.cuda.packed import PackedSlots
from ktbench.engine.cuda.stream import SideStream
from ktbench.engine.cuda.streamed import StreamedExperts
from ktbench.engine.forms import ExpertMatrices, ExpertStore
from ktbench.engine.placement import ExpertSwap


class PackedResidents:
    """Copies of packed experts. A move is one copy of an expert's bytes to where they stay."""

    def __init__(
        self, host: StreamedExperts, at_device: NDArray[np.bool_], device: torch.device, transfers: SideStream
    ) -> None:
        self._memory, self._transfers = host.memory, transfers
        self.backend = PackedSlots(host.memory, _numbers(at_device), host.layout, host.glu, device)

    def move(self, move: ExpertSwap) -> None:
        self._transfers.fork()
        self._transfers.copy(self.backend.memory_for(move.incoming, move.outgoing), self._memory[move.incoming])

    def arrived(self) -> bool:
        return self._transfers.done()

    def finish(self) -> None:
        self._transfers.finish()


class Bf16Residents:
    """Experts in bf16, which take as much room unpacked: that is done once, on the device, when they have arrived."""

    def __init__(
        self, host: StreamedExperts, at_device: NDArray[np.bool_], device: torch.device, transfers: SideStream
    ) -> None:
        self._memory, self._layout, self._glu = host.memory, host.layout, host.glu
        self._device, self._transfers = device, transfers
        self._arriving: list[tuple[ExpertSwap, Tensor]] = []
        self.backend = SlotExperts(len(at_device), _numbers(at_device), self._placed, device)

    def _placed(self, i: int) -> ExpertMatrices:
        return self._layout.matrices(self._memory[i].to(self._device), self._glu)

    def move(self, move: ExpertSwap) -> None:
        packed = torch.empty(self._memory.shape[1], dtype=torch.uint8, device=self._device)
        self._transfers.fork()
        self._transfers.copy(packed, self._memory[move.incoming])
        self._arriving.append((move, packed))

    def arrived(self) -> bool:
        if not self._transfers.done():
            return False
        for move, packed in self._arriving:
            self.backend.move(move.incoming, move.outgoing, self._layout.matrices(packed, self._glu))
        self._arriving.clear()
        return True

    def finish(self) -> None:
        self._transfers.finish()


class UnpackedResidents:
    """Copies in bf16 of experts in formats that a device does not unpack: the host does it, in the step of a move."""

    def __init__(self, store: ExpertStore, at_device: NDArray[np.bool_], device: torch.device) -> None:
        self._store = store
        self.backend = SlotExperts(len(at_device), _numbers(at_device), store, device)

    def move(self, move: ExpertSwap) -> None:
        self.backend.move(move.incoming, move.outgoing, self._store(move.incoming))

    def arrived(self) -> bool:
        """They are there in the order of the device's work."""
        return True

    def finish(self) -> None:
        """Nothing is on its way."""


def _numbers(at_device: NDArray[np.bool_]) -> list[int]:
    numbers: list[int] = np.flatnonzero(at_device).tolist()
    return numbers
