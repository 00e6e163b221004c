"""Weights of a GGUF file, mapped into memory and read piece by piece.

Letters: N rows, K weights of a row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ktbench.engine.forms import Blocks
from ktbench.engine.gguf.header import Header
from ktbench.engine.gguf.tensors import Kind, TensorInfo
from ktbench.spec.run_spec import Precision
from ktbench.spec.weights import BLOCK_BYTES

# Types whose blocks the kernels compute on as they are.
_PRECISIONS: Mapping[Kind, Precision] = {"Q8_0": "q8_0", "Q4_0": "q4_0"}
_SCALE_BYTES = 2
_Q4_ZERO = 8
# Numbers in float32 at a time: they stay in cache.
_PIECE = 1 << 18


class MappedWeights:
    """The tensors of a file; only what is asked for is read."""

    def __init__(self, header: Header) -> None:
        self.path, self.tensors = header.path, header.tensors
        self._bytes = np.asarray(np.memmap(header.path, np.uint8, "r"))

    def info(self, name: str) -> TensorInfo:
        """Type and shape of a tensor. Raises ValueError where the file has none of this name."""
        if name not in self.tensors:
            raise ValueError(f"{self.path}: has no tensor {name}")
        return self.tensors[name]

    def read(self, name: str, index: int | None = None) -> Tensor:
        """A tensor, or its part `index` along the first dimension, in bf16; of type F32 as it is."""
        info, rows = self.info(name), self.rows(name)
        shape = info.shape if index is None else info.shape[1:]
        rows = (rows if index is None else rows[index]).reshape(-1, info.row_bytes)
        whole = torch.empty(len(rows), info.shape[-1], dtype=torch.float32 if info.kind == "F32" else torch.bfloat16)
        step = max(1, _PIECE // info.shape[-1])
        for row in range(0, len(rows), step):
            whole[row : row + step] = numbers(rows[row : row + step], info.kind)
        return whole.view(shape)

    def rows(self, name: str) -> Blocks:
        """The bytes of a tensor, by its dimensions but the last; a view of the file."""
        info = self.info(name)
        return self._bytes[info.offset : info.offset + info.nbytes].reshape(*info.shape[:-1], info.row_bytes)

    def is_in(self, name: str, precision: Precision | None) -> bool:
        """Whether those bytes are blocks of `precision`."""
        return precision is not None and _PRECISIONS.get(self.info(name).kind) == precision

    def require(self, name: str, shape: tuple[int, ...]) -> None:
        """Raise ValueError where the file has no tensor of this name and shape."""
        if (held := self.info(name).shape) != shape:
            raise ValueError(f"{self.path}: tensor {name} is {held}, the model asks for {shape}")


def numbers(rows: NDArray[np.uint8], kind: Kind) -> Tensor:
    """[N, K] of the bytes of N rows: bf16 for BF16, else float32, which holds the numbers of the other types exactly.

    A block of Q8_0 or Q4_0 has a scale d in half precision and 32 integers q, which stand for d·q (ggml-quants.c).
    """
    return _WAYS[kind](torch.from_numpy(rows.copy()))


def _q8_0(rows: Tensor) -> Tensor:
    blocks = rows.view(-1, BLOCK_BYTES["q8_0"])
    return _scaled(blocks, blocks[:, _SCALE_BYTES:].view(torch.int8)).view(len(rows), -1)


def _q4_0(rows: Tensor) -> Tensor:
    """The low halves of the bytes are the first 16 weights, the high halves the rest."""
    blocks = rows.view(-1, BLOCK_BYTES["q4_0"])
    halves = blocks[:, _SCALE_BYTES:]
    return _scaled(blocks, torch.cat([halves & 15, halves >> 4], dim=1).float() - _Q4_ZERO).view(len(rows), -1)


def _scaled(blocks: Tensor, integers: Tensor) -> Tensor:
    return integers.float() * blocks[:, :_SCALE_BYTES].contiguous().view(torch.float16).float()


_WAYS: Mapping[Kind, Callable[[Tensor], Tensor]] = {
    "F32": lambda rows: rows.view(torch.float32),
    "F16": lambda rows: rows.view(torch.float16).float(),
    "BF16": lambda rows: rows.view(torch.bfloat16),
    "Q8_0": _q8_0,
    "Q4_0": _q4_0,
}
