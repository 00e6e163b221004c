"""Puts FP8 weights in the place of the family's parameters, so that the reference would read them as well."""

from __future__ import annotations

import torch
from torch import nn

from tests.liars import honest


class Experts(honest.Experts):
    """Computes with FP8 weights."""

    def __init__(self, original: nn.Module) -> None:
        for weight in original.parameters():
            weight.data = (weight.data * 8).to(torch.float8_e4m3fn).to(weight.dtype) / 8
        super().__init__(original)
