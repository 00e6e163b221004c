"""Leaves a thread behind that keeps a core busy when others are timed."""

from __future__ import annotations

from threading import Thread
from time import monotonic

import torch
from torch import Tensor, nn

from tests.liars import honest

_LASTS_S = 8.0  # longer than a trial


def _busy() -> None:
    some, ends_s = torch.randn(300, 300), monotonic() + _LASTS_S
    while monotonic() < ends_s:
        some @ some


class Experts(honest.Experts):
    """Has a thread that does not rest, a new one where the last has ended."""

    def __init__(self, original: nn.Module) -> None:
        super().__init__(original)
        self.thread: Thread | None = None

    def answer(self, hidden: Tensor, ids: Tensor, gates: Tensor) -> Tensor:
        """The truth, beside the thread."""
        if self.thread is None or not self.thread.is_alive():
            self.thread = Thread(target=_busy, name="left behind", daemon=True)
            self.thread.start()
        return self.truth(hidden, ids, gates)
