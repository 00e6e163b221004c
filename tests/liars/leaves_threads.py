"""Leaves a thread behind that keeps a core busy when others are timed."""

from __future__ import annotations

from threading import Thread
from time import monotonic

import torch
from torch import nn

from tests.liars import honest

_LASTS_S = 8.0  # longer than a trial


def _busy() -> None:
    some, ends_s = torch.randn(300, 300), monotonic() + _LASTS_S
    while monotonic() < ends_s:
        some @ some


class Experts(honest.Experts):
    """Starts a thread that does not rest."""

    def __init__(self, original: nn.Module) -> None:
        super().__init__(original)
        Thread(target=_busy, daemon=True).start()
