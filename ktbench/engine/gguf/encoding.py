"""Tensors as the bytes of a GGUF type, some rows at a time."""

from __future__ import annotations

from collections.abc import Iterator

import gguf
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ktbench.engine.gguf.tensors import Kind

# Quantising takes several times the memory of the float32 numbers it is given.
_CHUNK = 2**20
_FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def encoded(tensor: Tensor, kind: Kind) -> Iterator[NDArray[np.uint8]]:
    """The bytes of a tensor, row after row. Blocks are those of the `gguf` package, which rounds as llama.cpp does."""
    width = tensor.shape[-1]
    matrix, step = tensor.detach().reshape(-1, width), max(1, _CHUNK // width)
    for first in range(0, len(matrix), step):
        rows = matrix[first : first + step]
        if kind in _FLOATS:
            yield rows.to(_FLOATS[kind]).contiguous().view(torch.uint8).numpy()
        else:
            yield gguf.quants.quantize(rows.float().numpy(), gguf.GGMLQuantizationType[kind])
