"""Quantised matrices of a safetensors folder, as their headers describe them; without PyTorch.

Letters: N rows (outputs), K columns (inputs), E experts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ktbench.spec.weights import FORMATS, Precision

Layout = Literal["fp8", "int4", "gptq", "awq", "nvfp4", "mxfp4"]
FP8_SIDE = 128  # of the squares of weights that share a scale
_SYMMETRIC = 8  # the zero point of symmetric INT4
NVFP4_GROUP = 16  # weights that share a scale
# Bytes of a number by the name of its type in safetensors.
_KIND_BYTES = {"BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "I16": 2, "U16": 2, "F16": 2}
_KIND_BYTES |= {"BF16": 2, "I32": 4, "U32": 4, "F32": 4, "I64": 8, "U64": 8, "F64": 8}
# For engines that quantise activations or the cache, which ours are not.
_ACTIVATION = ("input_scale", "input_global_scale", "activation_scale", "output_scale", "k_scale", "v_scale", "q_scale")


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor of a file, its type as safetensors names it."""

    file: Path
    kind: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Of the whole tensor."""
        return prod(self.shape) * _KIND_BYTES[self.kind]


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredMatrix:
    """A quantised matrix [N, K], or a stack of them [E, N, K], and the `format` of the blocks that it becomes.

    `name` is that of the plain tensor it stands for, `parts` the tensors that hold it. Of NVFP4 the global scale
    `divides` as compressed-tensors stores it; of INT4 `groups` of columns share scales, `zero_offset` as of a `Method`.
    """

    name: str
    layout: Layout
    format: Precision
    shape: tuple[int, ...]
    file: Path
    parts: Mapping[str, str]
    groups: int = 0
    zero_offset: int = 0
    divides: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether rows are whole blocks, or are filled up to some: others are computed on as numbers only."""
        return not FORMATS[self.format].whole_blocks or self.shape[-1] % FORMATS[self.format].group == 0


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredWeights:
    """The tensors of a folder by name, and the quantised matrices that they make, by the names of plain ones."""

    tensors: Mapping[str, StoredTensor]
    matrices: Mapping[str, StoredMatrix] = field(default_factory=dict)

    @property
    def is_quantised(self) -> bool:
        """Whether any weight is stored as anything but plain numbers."""
        return bool(self.matrices)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes by name: quantised matrices by the plain tensors that they stand for, not by what holds them."""
        parts = {part for matrix in self.matrices.values() for part in matrix.parts.values()}
        plain = {name: one.shape for name, one in self.tensors.items() if name not in parts}
        return plain | {name: one.shape for name, one in self.matrices.items()}

    def format_of(self, name: str) -> Precision:
        """The format of a weight by the name of the plain tensor it is or stands for: plain numbers are bf16."""
        return self.matrices[name].format if name in self.matrices else "bf16"

    def nbytes_of(self, name: str) -> int:
        """Bytes of the tensors that hold a weight, by the name of the plain tensor it is or stands for."""
        held = self.matrices[name].parts.values() if name in self.matrices else (name,)
        return sum(self.tensors[part].nbytes for part in held)

    def is_beside(self, name: str) -> bool:
        """Whether a tensor is for engines that quantise activations or the cache."""
        return self.is_quantised and name.rpartition(".")[2] in _ACTIVATION


def is_plain_order(order: NDArray[np.integer[Any]], groups: int) -> bool:
    """Whether columns [K] are in groups that are runs of neighbours (GPTQ's `g_idx`), `groups` of them."""
    return len(order) % groups == 0 and bool((order == np.arange(len(order)) // (len(order) // groups)).all())


def require_symmetric(matrix: StoredMatrix, zeros: NDArray[np.integer[Any]]) -> None:
    """Raise ValueError where the zero points of a symmetric matrix, as they are stored, are not all 8.

    Some releases store 8 where their version of the format is to store it less by one: both say the same.
    """
    if not any((zeros == _SYMMETRIC - less).all() for less in (0, matrix.zero_offset)):
        name = matrix.parts["zeros"]
        raise ValueError(f"{matrix.file}: {name} has zero points other than 8, but config.json says symmetric")
