"""Bytes of expert weights in each precision, as the fused operator packs them (kernels/core/layout.h)."""

from __future__ import annotations

from math import ceil

from ktbench.spec.run_spec import Precision
from ktbench.spec.shape import MoEShape

_BF16_BYTES = 2
# Of each output row unless bf16: its scale in float32, and in int32 what takes back the offset of unsigned activations.
_ROW_BYTES = 4 + 4
_GROUP_SCALE_BYTES = 1
_ROW_OFFSET_BYTES = 4  # what takes back that offset, where scales are all in the blocks
# GGUF's blocks of 32 weights: a half-precision scale, then the weights (ggml-common.h).
BLOCK_BYTES = {"q8_0": 2 + 32, "q4_0": 2 + 16}
BLOCK = 32


def expert_bytes(shape: MoEShape, precision: Precision) -> int:
    """Bytes of one routed expert's weights and scales, without any padding of the tiles that they are packed in."""
    matrices = ((shape.expert_ffn, shape.hidden),) * 2 + ((shape.hidden, shape.expert_ffn),)
    return sum(rows * _row_bytes(columns, precision) for rows, columns in matrices)


def dense_bytes(shape: MoEShape, precision: Precision) -> int:
    """Bytes of the linear layers that the lean device role packs: all but routed experts and the embedding.

    Counted as rows of the hidden width, which most of them have.
    """
    rows = (shape.other_params - shape.vocab * shape.hidden * (0 if shape.tied_head else 1)) / shape.hidden
    return round(rows * _row_bytes(shape.hidden, precision))


def _row_bytes(columns: int, precision: Precision) -> int:
    if precision == "bf16":
        return _BF16_BYTES * columns
    if precision == "int8":
        return columns + _ROW_BYTES
    if precision in BLOCK_BYTES:
        return ceil(columns / BLOCK) * BLOCK_BYTES[precision] + _ROW_OFFSET_BYTES
    group = int(precision.removeprefix("int4_g"))
    return ceil(columns / 2) + _GROUP_SCALE_BYTES * ceil(columns / group) + _ROW_BYTES
