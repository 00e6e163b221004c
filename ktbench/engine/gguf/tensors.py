"""Where the tensors of a GGUF file lie, as its header says, and the types that they may have. Imports no PyTorch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from ktbench.engine.gguf.cursor import Cursor
from ktbench.spec.weights import BLOCK, BLOCK_BYTES

Kind = Literal["F32", "F16", "BF16", "Q8_0", "Q4_0"]
KINDS: tuple[Kind, ...] = get_args(Kind)
# Weights that share a block, and its bytes (ggml-common.h).
_BLOCKS: Mapping[str, tuple[int, int]] = {
    "F32": (1, 4),
    "F16": (1, 2),
    "BF16": (1, 2),
    "Q8_0": (BLOCK, BLOCK_BYTES["q8_0"]),
    "Q4_0": (BLOCK, BLOCK_BYTES["q4_0"]),
}
# Names of all types by number (ggml.h).
_TYPES = {0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K"}
_TYPES |= {12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S"}
_TYPES |= {20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64"}
_TYPES |= {29: "IQ1_M", 30: "BF16", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4", 41: "Q1_0"}

_MOST_DIMENSIONS = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorInfo:
    """A tensor of `shape`, rows first as in PyTorch, whose bytes begin at `offset`."""

    name: str
    kind: Kind
    shape: tuple[int, ...]
    offset: int

    @property
    def row_bytes(self) -> int:
        """Of one row along the last dimension."""
        weights, block_bytes = _BLOCKS[self.kind]
        return self.shape[-1] // weights * block_bytes

    @property
    def nbytes(self) -> int:
        """Of the whole tensor."""
        return math.prod(self.shape[:-1]) * self.row_bytes


def read_tensor(cursor: Cursor) -> TensorInfo:
    """The next entry. Raises ValueError for a type that the engine does not read, and for one that cannot be."""
    name, dimensions = cursor.text(), cursor.u32()
    if not 1 <= dimensions <= _MOST_DIMENSIONS:
        raise ValueError(f"damaged, tensor {name!r} has {dimensions} dimensions")
    shape = tuple(cursor.u64() for _ in range(dimensions))[::-1]
    tensor = TensorInfo(name=name, kind=_kind(cursor.u32(), name), shape=shape, offset=cursor.u64())
    if 0 in shape or shape[-1] % _BLOCKS[tensor.kind][0]:
        raise ValueError(f"damaged, tensor {name!r} of {tensor.kind} has the shape {shape}")
    return tensor


def _kind(number: int, name: str) -> Kind:
    word = _TYPES.get(number, f"of type {number}")
    for kind in KINDS:
        if word == kind:
            return kind
    raise ValueError(f"tensor {name!r} is {word}, allowed are {', '.join(KINDS)}")


def placed(tensors: Sequence[TensorInfo], head_bytes: int, alignment: int, size: int) -> Iterator[TensorInfo]:
    """The same with offsets in the file of `size` bytes, where data follow a header of so many bytes.

    Data lie one after the other in the order of the header, each aligned (docs/gguf.md). Raises ValueError for a tensor
    that says otherwise, and where the file is shorter or longer.
    """
    begin, end = _aligned(head_bytes, alignment), head_bytes
    for tensor in tensors:
        offset = _aligned(end, alignment)
        if begin + tensor.offset != offset:
            raise ValueError(
                f"damaged, tensor {tensor.name!r} lies at {begin + tensor.offset:,}, expected at {offset:,}"
            )
        end = offset + tensor.nbytes
        yield replace(tensor, offset=offset)
    if size < end:
        raise ValueError(f"truncated, holds {size:,} of {end:,} bytes")
    if size > _aligned(end, alignment):
        raise ValueError(f"damaged, holds {size:,} bytes where its header promises {end:,}")


def _aligned(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment
