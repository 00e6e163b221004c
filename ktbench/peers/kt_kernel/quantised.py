"""Weights as kt-kernel stores them, in float32.

Facts from its sources, kt-kernel/operators/amx/la: `BufferB::_pack_block` of amx_kernels.hpp for int8,
`BufferBInt4Impl` of amx_buffers.hpp for int4.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from ktbench.engine.forms import ExpertMatrices


def as_stored(expert: ExpertMatrices, kind: str, pools: int) -> ExpertMatrices:
    """An expert's matrices as they count once stored as bf16, int8 or int4.

    Each row has one scale. The columns of `down` are split over the pools, and each pool scales its part by itself.
    """
    stored = _STORED[kind]
    down = torch.cat([stored(part) for part in expert.down.float().chunk(pools, dim=1)], dim=1)
    return replace(expert, gate=stored(expert.gate.float()), up=stored(expert.up.float()), down=down)


def _int8(matrix: Tensor) -> Tensor:
    scale = _largest(matrix) / 127
    return torch.round(matrix * _inverse(scale)).clamp(-128, 127) * scale


def _int4(matrix: Tensor) -> Tensor:
    """An int8 of up to 112 in magnitude, rounded to a multiple of 16, ties away from 0: -7 to 7 of them."""
    scale = _largest(matrix) / 112
    fine = torch.round(matrix * _inverse(scale))
    return torch.sign(fine) * torch.floor((fine.abs() + 8) / 16) * 16 * scale


def _largest(matrix: Tensor) -> Tensor:
    return matrix.abs().amax(dim=1, keepdim=True)


def _inverse(scale: Tensor) -> Tensor:
    return torch.where(scale > 0, 1 / scale, 0.0)


_STORED: Mapping[str, Callable[[Tensor], Tensor]] = {"bf16": lambda matrix: matrix, "int8": _int8, "int4": _int4}
