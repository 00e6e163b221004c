"""Better ways to do what a recording found."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from ktbench._kernels import Linear, PackedMatrix, SmallCall
from ktbench.engine.decode.program import Call, IsConstant
from ktbench.engine.dense import DenseOperators
from ktbench.engine.forms import as_numpy

# More rows than a router has experts belong to a layer that the rules left alone on purpose.
_MOST_ROWS = 1024
# More numbers are worth PyTorch's threads and wider vectors.
_MOST_NUMBERS = 16_384
_BITS = {2: torch.uint16, 4: torch.int32}


class Lowering:
    """Small operations by native calls: for one token PyTorch takes longer to begin than to compute.

    Products of bf16 with small constant matrices, as routers form them, on the matrices packed in bf16; sums of bf16;
    rows looked up in a table.
    """

    def __init__(self, device: DenseOperators) -> None:
        self._device = device
        self._packed: dict[int, tuple[PackedMatrix, Tensor]] = {}
        self._ways: dict[Any, Callable[..., Call | None]] = {
            torch.ops.aten.linear.default: self._linear,
            torch.ops.aten.add.Tensor: _add,
            torch.ops.aten.embedding.default: _embedding,
            torch.ops.aten.index.Tensor: _index,
        }

    def __call__(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Tensor, constant: IsConstant
    ) -> Call | None:
        way = self._ways.get(func)
        if way is None or kwargs or not result.is_contiguous():
            return None
        return way(args, result, constant)

    def _linear(self, args: tuple[Any, ...], result: Tensor, constant: IsConstant) -> Call | None:
        x, weight, bias = (*args, None)[:3]
        if result.dtype != torch.bfloat16 or not constant(args[1:]):
            return None
        if len(weight) > _MOST_ROWS or not x.is_contiguous():
            return None
        kernel = Linear(self._pack(weight), self._device.team, None if bias is None else bias.float().numpy())
        rows = x.view(-1, x.shape[-1])
        return partial(kernel.forward, as_numpy(rows), as_numpy(result.view(len(rows), -1)))

    def _pack(self, weight: Tensor) -> PackedMatrix:
        if id(weight) not in self._packed:
            packed = PackedMatrix(weight.shape[0], weight.shape[1])
            packed.write(as_numpy(weight.contiguous()), 0, self._device.team)
            self._packed[id(weight)] = packed, weight  # kept, so that its id stays its own
        return self._packed[id(weight)][0]


def _add(args: tuple[Any, ...], result: Tensor, _constant: IsConstant) -> Call | None:
    for arg in args:
        if not isinstance(arg, Tensor) or arg.dtype != torch.bfloat16 or arg.shape != result.shape:
            return None
        if not arg.is_contiguous():
            return None
    if result.numel() > _MOST_NUMBERS:
        return None
    return SmallCall.add(as_numpy(args[0]), as_numpy(args[1]), as_numpy(result)).forward


def _embedding(args: tuple[Any, ...], result: Tensor, _constant: IsConstant) -> Call | None:
    return _take_rows(args[0], args[1], result)


def _index(args: tuple[Any, ...], result: Tensor, _constant: IsConstant) -> Call | None:
    """`table[ids]`. PyTorch would count ids below zero from the end; in a replay they are an error."""
    table, (ids, *others) = args
    if ids is None or others or bool((ids < 0).any()):
        return None
    return _take_rows(table, ids, result)


def _take_rows(table: Tensor, ids: Tensor, result: Tensor) -> Call | None:
    if table.dim() != 2 or table.dtype.itemsize not in _BITS or ids.dtype != torch.int64:
        return None
    if not table.is_contiguous() or not ids.is_contiguous():
        return None
    out = _numbers(result.view(-1, table.shape[1]))
    return SmallCall.take_rows(_numbers(table), ids.view(-1).numpy(), out).forward


def _numbers(tensor: Tensor) -> NDArray[Any]:
    """The memory of a tensor of any type."""
    return tensor.detach().view(_BITS[tensor.dtype.itemsize]).numpy()
