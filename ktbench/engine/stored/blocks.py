"""Quantised matrices of safetensors files as the blocks that the kernels take, and the numbers that blocks stand for.

Letters: N rows (outputs), K columns (inputs), G groups of columns that share a scale. A row of blocks is bytes:

| format | weights | block |
|---|---|---|
| fp8 | 128 | scale float32, e4m3 each |
| int4_bf16, q4_0 | 32 | scale bf16 or half, codes; a weight is (code - 8) · scale |
| int4_zp | 256 | of each 32: scale half, zero as a byte, codes; a weight is (code - zero) · scale |
| mxfp4 | 32 | scale e8m0, codes of e2m1 |
| nvfp4 | 256 | scale float32, scales e4m3 of 16 weights each, codes of e2m1 |

Codes are 4 bits: of 32 weights (of nvfp4: of 16) the first half lies in the low halves of the bytes, the other one in
the high halves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from ktbench.engine.forms import Blocks
from ktbench.engine.stored.matrices import (
    FP8_SIDE,
    NVFP4_GROUP,
    Layout,
    StoredMatrix,
    is_plain_order,
    require_symmetric,
)
from ktbench.spec.weights import FORMATS, Precision

# Gives a tensor by its name.
Read = Callable[[str], Tensor]
_NIBBLES = 8  # of an int32
_ALONE_BYTES = 1 << 20  # of a matrix that one thread decodes sooner than several that have to be woken
# The nibble that holds each of 8 neighbouring rows in AutoAWQ's int32 (version gemm: rows 0, 2, 4, 6, 1, 3, 5, 7).
_AWQ_NIBBLES = [0, 4, 1, 5, 2, 6, 3, 7]
_E4M3_NAN, _E8M0_NAN = 127, 255


def blocks_of(matrix: StoredMatrix, read: Read) -> Tensor:
    """Rows of a matrix, uint8 [N, blocks · bytes of one]; the last block is filled with zeros where K leaves room.

    Raises ValueError naming a tensor whose scales are not finite, or that is no matrix of its format.
    """
    return _WRITERS[matrix.layout](_Parts(matrix, read))


def numbers_of(matrix: StoredMatrix, read: Read) -> Tensor:
    """The same matrix as float32 [N, K]."""
    return block_numbers(as_blocks(blocks_of(matrix, read)), matrix.format)[:, : matrix.shape[-1]]


def block_numbers(rows: Blocks, kind: Precision) -> Tensor:
    """[N, K] float32 that rows of blocks of format `kind` stand for, as the kernels that compute on them read them."""
    from ktbench._kernels import OpenMPTeam, PackedMatrix  # plain numbers are read without the extension

    matrix = PackedMatrix(len(rows), rows.shape[-1] // FORMATS[kind].block_bytes * FORMATS[kind].group, kind)
    team = OpenMPTeam(torch.get_num_threads()) if matrix.nbytes > _ALONE_BYTES else None
    matrix.write_blocks(np.ascontiguousarray(rows), team=team)
    return torch.from_numpy(matrix.read(team))


class _Parts:
    """The tensors of one matrix, checked as far as their headers do not tell."""

    def __init__(self, matrix: StoredMatrix, read: Read) -> None:
        self.matrix, self._read = matrix, read
        self.rows, self.columns = matrix.shape[-2:]
        if "order" in matrix.parts and not is_plain_order(self.of("order").numpy(), matrix.groups):
            raise self.wrong("order", "reorders columns (desc_act), which is not read")

    def weights(self) -> Tensor:
        """Their memory, uint8 [..., bytes of a row]."""
        return self.of("weight").contiguous().view(torch.uint8)

    def of(self, part: str) -> Tensor:
        """A tensor as it is stored."""
        return self._read(self.matrix.parts[part])

    def scale(self, part: str = "scale") -> Tensor:
        """Scales as they are stored."""
        scale = self.of(part)
        if not scale.float().isfinite().all():
            raise self.wrong(part, "has a scale that is not a finite number")
        return scale

    def wrong(self, part: str, why: str) -> ValueError:
        """An error about a tensor."""
        return ValueError(f"{self.matrix.file}: {self.matrix.parts[part]} {why}")


def _fp8(parts: _Parts) -> Tensor:
    weights, step = _whole(parts.weights(), FORMATS["fp8"].group), FORMATS["fp8"].group
    if ((weights & _E4M3_NAN) == _E4M3_NAN).any():
        raise parts.wrong("weight", "has a weight that is not a number")
    blocks = weights.view(parts.rows, -1, step)
    scales = _expand_block_scales(parts.scale().float(), *blocks.shape[:2])
    return torch.cat([_bytes(scales[..., None]), blocks], dim=-1).flatten(1)


def _expand_block_scales(scale: Tensor, rows: int, blocks: int) -> Tensor:
    """[N, blocks] of scales of squares [N / 128, blocks], of rows [N, 1] or [N], or of the whole matrix."""
    if scale.numel() == 1:
        return scale.view(1, 1).expand(rows, blocks)
    if scale.dim() == 2 and len(scale) != rows:
        return scale.repeat_interleave(FP8_SIDE, dim=0)[:rows].expand(rows, blocks)
    return scale.view(rows, -1).expand(rows, blocks)


def _int4(parts: _Parts) -> Tensor:
    if "shape" in parts.matrix.parts and tuple(parts.of("shape").tolist()) != (parts.rows, parts.columns):
        raise parts.wrong("shape", f"must be {(parts.rows, parts.columns)}, as the weights are packed")
    return _nibble_blocks(parts, _halved(parts.weights(), 32), parts.scale(), None)


def _gptq(parts: _Parts) -> Tensor:
    pairs = parts.of("weight").T.contiguous().view(torch.uint8)
    zeros = _codes(parts.of("zeros"))
    if parts.matrix.format == "int4_zp":
        zeros = (zeros + parts.matrix.zero_offset) & 15  # a stored 15 is 0: four bits wrap
    else:
        require_symmetric(parts.matrix, zeros.numpy())
    return _nibble_blocks(parts, _halved(pairs, 32), parts.scale().T, zeros.T)


def _awq(parts: _Parts) -> Tensor:
    codes, zeros = (_rows_in_order(_codes(parts.of(part))) for part in ("weight", "zeros"))
    return _nibble_blocks(parts, _joined(codes.T.reshape(parts.rows, -1, 32)), parts.scale().T, zeros.T)


def _rows_in_order(codes: Tensor) -> Tensor:
    return codes.view(len(codes), -1, _NIBBLES)[..., _AWQ_NIBBLES].flatten(1)


def _nibble_blocks(parts: _Parts, halves: Tensor, scale: Tensor, zeros: Tensor | None) -> Tensor:
    """Of codes [N, K / 32, 16], their scales [N, G], and zeros [N, G], which symmetric formats have no use for."""
    kind, repeats = parts.matrix.format, halves.shape[1] // scale.shape[1]
    heads = [_bytes((_in_half(parts, scale) if kind == "int4_zp" else scale)[..., None])]
    heads += [zeros[..., None]] if zeros is not None and kind == "int4_zp" else []
    head = torch.cat(heads, dim=-1).repeat_interleave(repeats, dim=1)
    return _whole(torch.cat([head, halves], dim=-1).flatten(1), FORMATS[kind].block_bytes)


def _in_half(parts: _Parts, scale: Tensor) -> Tensor:
    half = scale.half()
    if (half.float() != scale.float()).any():
        raise parts.wrong("scale", "has a scale that half precision does not hold, as blocks with zero points need it")
    return half


def _nvfp4(parts: _Parts) -> Tensor:
    step, both = FORMATS["nvfp4"].group, parts.scale("global").view(1, 1, 1)
    if parts.matrix.divides:
        both = both.reciprocal()
    if not both.isfinite().all():
        raise parts.wrong("global", "has a scale that is not a finite number")
    scales = _whole(parts.scale().contiguous().view(torch.uint8), step // NVFP4_GROUP)
    scales = scales.view(parts.rows, -1, step // NVFP4_GROUP)
    codes = _halved(_whole(parts.weights(), step // 2), NVFP4_GROUP).reshape(*scales.shape[:2], -1)
    return torch.cat([_bytes(both).expand(*scales.shape[:2], -1), scales, codes], dim=-1).flatten(1)


def _mxfp4(parts: _Parts) -> Tensor:
    scales = parts.of("scale")[..., None]
    if (scales == _E8M0_NAN).any():
        raise parts.wrong("scale", "has a scale that is not a number")
    return torch.cat([scales, _halved(parts.weights().flatten(1), FORMATS["mxfp4"].group)], dim=-1).flatten(1)


def _bytes(scales: Tensor) -> Tensor:
    return scales.contiguous().view(torch.uint8)


def _whole(rows: Tensor, step: int) -> Tensor:
    """Rows of bytes, lengthened with zeros to a multiple of `step`."""
    return pad(rows, (0, -rows.shape[-1] % step))


def _codes(words: Tensor) -> Tensor:
    """uint8 [..., 8 W] of int32 [..., W], the lowest bits first."""
    pairs = words.contiguous().view(torch.uint8)
    return torch.stack([pairs & 15, pairs >> 4], dim=-1).flatten(-2)


def _halved(pairs: Tensor, group: int) -> Tensor:
    """[N, K / group, group / 2] of neighbours in pairs [N, K / 2], the first in the low half of a byte."""
    codes = torch.stack([pairs & 15, pairs >> 4], dim=-1)
    return _joined(codes.view(len(pairs), -1, group))


def _joined(codes: Tensor) -> Tensor:
    first, second = codes.chunk(2, dim=-1)
    return first | second << 4


_WRITERS: Mapping[Layout, Callable[[_Parts], Tensor]] = {
    "fp8": _fp8,
    "int4": _int4,
    "gptq": _gptq,
    "awq": _awq,
    "nvfp4": _nvfp4,
    "mxfp4": _mxfp4,
}


def as_blocks(rows: Tensor) -> Blocks:
    """The same memory for the kernels, without gaps."""
    blocks: Blocks = rows.contiguous().numpy()
    return blocks
