"""What stands for the weights of packed experts as parameters of their module, so that PEFT finds them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

_NEED_NUMBERS = (Tensor.add, Tensor.__add__, Tensor.__radd__, Tensor.add_, Tensor.__iadd__, torch.add)


@dataclass(frozen=True, slots=True)
class LowRank:
    """scale · left @ right, [E, rows, r] and [E, r, columns]: what an adapter adds to a weight."""

    left: Tensor
    right: Tensor
    scale: float


class PackedWeight(Tensor):
    """Shape and type of a packed weight, without its numbers: one element that all others share the memory of.

    PEFT adds LoRA to a parameter of experts as `torch.baddbmm(weight, left, right, alpha=scale)`; here that keeps the
    factors, as `low_rank`, and multiplies nothing. Whatever would need the numbers raises RuntimeError.
    """

    low_rank: LowRank | None = None

    @classmethod
    def of(cls, shape: tuple[int, ...]) -> PackedWeight:
        """Of this shape, in bf16."""
        return torch.zeros(1, dtype=torch.bfloat16).expand(shape).as_subclass(cls)

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """See the class."""
        if func is torch.baddbmm:
            return cls._adapted(*args, **(kwargs or {}))
        if func in _NEED_NUMBERS:
            raise RuntimeError(
                "packed experts have no numbers to add to: have one adapter active at a time, and do not merge it"
            )
        return super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]

    @classmethod
    def _adapted(cls, weight: Tensor, left: Tensor, right: Tensor, *, alpha: float = 1.0) -> PackedWeight:
        adapted = cls.of(tuple(weight.shape))
        adapted.low_rank = LowRank(left, right, float(alpha))
        return adapted


def packed_parameter(shape: tuple[int, ...]) -> nn.Parameter:
    """A frozen parameter of this shape that stands for packed weights."""
    return nn.Parameter(PackedWeight.of(shape), requires_grad=False)
