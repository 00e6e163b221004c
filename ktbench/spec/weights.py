"""The formats of weights, one row each, and the bytes of a model's weights in each.

The table restates that of the kernel extension (kernels/core/formats.h), so that it can be read without the extension;
tests/kernels/test_formats.py holds them equal.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial
from math import ceil
from typing import Literal

from ktbench.spec.shape import MoEShape

Precision = Literal[
    "bf16",
    "int8",
    "int4_g32",
    "int4_g64",
    "int4_g128",
    "q8_0",
    "q4_0",
    "iq4_nl",
    "mxfp4",
    "int4_bf16",
    "fp8",
    "q2_k",
    "q3_k",
    "q4_k",
    "q5_k",
    "q6_k",
    "iq4_xs",
    "iq3_s",
    "iq3_xxs",
    "iq2",
    "iq1",
    "nvfp4",
    "int4_zp",
]
Dtype = Literal["bf16", "int8"]
BLOCK, SUPER_BLOCK = 32, 256  # weights of GGUF's blocks
STRIP_ROWS = 16  # output rows that are packed together; a layer that shares a matrix begins with whole strips


@dataclass(frozen=True, kw_only=True, slots=True)
class Format:
    """How one precision stores weights; `title` is what the field calls it.

    `group` counts the weights along k that share a scale; 0: the row, or none. `block_bytes` are those of a group as a
    checkpoint stores it (ggml-common.h), 0 where none does; `whole_blocks`: rows cannot end within one; `from_numbers`:
    bf16 weights can be quantised to it. Files in super-blocks mix formats of these. `floats`: multiplied as bf16 on
    every instruction set.
    """

    title: str
    bits: int
    group: int = 0
    scale_bytes: int = 0  # of a group
    scale_rows: int = 1  # output rows that share it where it is packed
    row_bytes: int = 0  # of an output row: its scale, and what takes back the offset of unsigned activations
    block_bytes: int = 0
    whole_blocks: bool = False
    from_numbers: bool = True
    floats: bool = False

    @property
    def super_blocks(self) -> bool:
        """Whether groups with scales of their own share one more."""
        return self.group == SUPER_BLOCK

    def multiplied_as(self, isa: str) -> Dtype:
        """The numbers that kernels of `isa` multiply: AMX takes blocks with scales of their own as bf16."""
        return "bf16" if self.floats or (isa == "amx" and self.block_bytes) else "int8"


_block = partial(Format, group=BLOCK, row_bytes=4, whole_blocks=True)
_super = partial(Format, group=SUPER_BLOCK, row_bytes=4)

FORMATS: Mapping[Precision, Format] = {
    "bf16": Format(title="bfloat16", bits=16, floats=True),
    "int8": Format(title="symmetric INT8", bits=8, row_bytes=8),
    "int4_g32": Format(title="symmetric INT4", bits=4, group=32, scale_bytes=1, row_bytes=8),
    "int4_g64": Format(title="symmetric INT4", bits=4, group=64, scale_bytes=1, row_bytes=8),
    "int4_g128": Format(title="symmetric INT4", bits=4, group=128, scale_bytes=1, row_bytes=8),
    "q8_0": _block(title="GGUF Q8_0", bits=8, scale_bytes=2, block_bytes=34),
    "q4_0": _block(title="GGUF Q4_0", bits=4, scale_bytes=2, block_bytes=18),
    "iq4_nl": _block(title="GGUF IQ4_NL", bits=4, scale_bytes=2, block_bytes=18),
    "mxfp4": _block(title="MXFP4 of OCP, as gpt-oss", bits=4, scale_bytes=1, block_bytes=17),
    "int4_bf16": _block(title="INT4 of compressed-tensors, as Kimi-K2-Thinking", bits=4, scale_bytes=2, block_bytes=18),
    "fp8": Format(
        title="FP8 E4M3, as DeepSeek-V3",
        bits=8,
        group=128,
        scale_bytes=4,
        scale_rows=16,
        row_bytes=4,
        block_bytes=132,
        floats=True,
    ),
    "q2_k": _super(title="GGUF Q2_K", bits=2, scale_bytes=20, block_bytes=84),
    "q3_k": _super(title="GGUF Q3_K", bits=3, scale_bytes=20, block_bytes=110),
    "q4_k": _super(title="GGUF Q4_K", bits=4, scale_bytes=20, block_bytes=144),
    "q5_k": _super(title="GGUF Q5_K", bits=5, scale_bytes=20, block_bytes=176),
    "q6_k": _super(title="GGUF Q6_K", bits=6, scale_bytes=20, block_bytes=210),
    "iq4_xs": _super(title="GGUF IQ4_XS", bits=4, scale_bytes=12, block_bytes=136),
    "iq3_s": _super(title="GGUF IQ3_S", bits=4, scale_bytes=12, block_bytes=136, from_numbers=False),
    "iq3_xxs": _super(title="GGUF IQ3_XXS", bits=4, scale_bytes=12, block_bytes=136, from_numbers=False),
    "iq2": _super(title="GGUF IQ2_XXS, IQ2_XS, IQ2_S", bits=3, scale_bytes=20, block_bytes=110, from_numbers=False),
    "iq1": _super(title="GGUF IQ1_S, IQ1_M", bits=3, scale_bytes=20, block_bytes=110, from_numbers=False),
    "nvfp4": _super(title="NVFP4 of ModelOpt", bits=4, scale_bytes=20, block_bytes=148),
    "int4_zp": _super(title="INT4 with zero points, of AWQ and GPTQ", bits=4, scale_bytes=24, block_bytes=152),
}
# Formats that bf16 weights are packed in where memory is short, the most accurate first.
BY_ACCURACY: tuple[Precision, ...] = ("bf16", "int8", "int4_g32", "q3_k", "q2_k")
BLOCK_BYTES = {name: row.block_bytes for name, row in FORMATS.items() if row.block_bytes}


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredLayer:
    """Routed experts of one MoE layer as the headers of a checkpoint describe them.

    Formats of gate, up and down, bf16 where these are computed on as numbers; `nbytes` are those of all the tensors
    that hold the matrices, with their scales.
    """

    gate: Precision
    up: Precision
    down: Precision
    nbytes: int

    @property
    def formats(self) -> tuple[Precision, Precision, Precision]:
        """Those of gate, up and down."""
        return self.gate, self.up, self.down


def stands_for_all(precision: Precision, stored: Collection[Precision]) -> bool:
    """Whether a precision means every format that the matrices of a checkpoint are stored in.

    Checkpoints mix formats, and keep in more bits what matters most: where one of their formats of blocks is asked for,
    each matrix is packed as it is stored.
    """
    return bool(FORMATS[precision].block_bytes) and precision in stored


def expert_bytes(shape: MoEShape, precision: Precision, down: Precision | None = None) -> int:
    """Bytes of one routed expert's weights and scales, without the padding of the strips that they are packed in.

    Rows that end within a tile of FP8 or a super-block count as filled up, as they are stored and read. `down` is the
    precision of the down projection, where it has another.
    """
    gate_up = 2 * shape.expert_ffn * _row_bytes(shape.hidden, precision)
    return round(gate_up + shape.hidden * _row_bytes(shape.expert_ffn, down or precision))


def held_weights(shape: MoEShape, precision: Precision, down: Precision) -> int:
    """Weights that one routed expert takes the bytes of: those of rows that are filled up to whole blocks."""
    gate_up = 2 * shape.expert_ffn * _held_columns(shape.hidden, precision)
    return gate_up + shape.hidden * _held_columns(shape.expert_ffn, down)


# Formats that a CUDA device unpacks as the host packs them, and bytes of a copy, which take far longer than its start.
DEVICE_UNPACKS: tuple[Precision, ...] = ("bf16", "int8", "int4_g32", "int4_g64", "int4_g128", "fp8")
STREAMED_CHUNK_BYTES = 64 << 20
# Pairs of a token and an expert for which a device holds copies of weights at once.
PAIRS_AT_ONCE = 8


def dense_bytes(shape: MoEShape, precision: Precision) -> int:
    """Bytes of the linear layers of the lean device role, packed but for what expands latents: that stays in bf16.

    These are all but routed experts and the embedding, counted as rows of the hidden width, which most of them have.
    """
    latent = shape.layers * shape.latent_params
    table = 0 if shape.tied_head else shape.vocab * shape.hidden
    rows = (shape.other_params - table - latent) / shape.hidden
    return round(rows * _row_bytes(shape.hidden, precision)) + 2 * latent


def _row_bytes(columns: int, precision: Precision) -> float:
    row, columns = FORMATS[precision], _held_columns(columns, precision)
    groups = ceil(columns / row.group) if row.group else 0
    return ceil(columns * row.bits / 8) + groups * row.scale_bytes / row.scale_rows + row.row_bytes


def _held_columns(columns: int, precision: Precision) -> int:
    row = FORMATS[precision]
    return ceil(columns / row.group) * row.group if row.block_bytes and not row.whole_blocks else columns


def weight_bits(precision: Precision) -> int:
    """Bits of one weight, without scales."""
    return FORMATS[precision].bits
