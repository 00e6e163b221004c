"""What an RMS norm of some family computes, found by asking it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

_EPSILONS = ("variance_epsilon", "eps")
_ROWS = 3
_TOLERANCE = 1e-4


@dataclass(frozen=True, kw_only=True, slots=True)
class NormForm:
    """y = (weight + offset) · x / sqrt(mean(x²) + epsilon) over the last dimension; `offset` is 0 or 1."""

    epsilon: float
    offset: int


def read_norm(module: nn.Module) -> NormForm:
    """The form of an RMS norm, wherever its weight is (`meta` included).

    Some families store the distance of the weight from one (Qwen3-Next, Gemma), under class names that do not tell.
    So the module is called with numbers in place of its weight. Raises ValueError that says what differs.
    """
    weight = module._parameters.get("weight")
    if weight is None or weight.dim() != 1 or len(list(module.parameters())) != 1:
        raise ValueError("has no 1-D weight as its only parameter")
    epsilon = next((getattr(module, name) for name in _EPSILONS if hasattr(module, name)), None)
    if not isinstance(epsilon, float):
        raise ValueError(f"has no epsilon called {' or '.join(_EPSILONS)}")
    return NormForm(epsilon=epsilon, offset=_offset(module, len(weight), epsilon))


def _offset(module: nn.Module, width: int, epsilon: float) -> int:
    numbers = torch.randn(_ROWS + 1, width, generator=torch.Generator().manual_seed(0))
    x, weight = numbers[1:], numbers[0]
    try:
        with torch.inference_mode():
            found: Tensor = functional_call(module, {"weight": weight}, (x,))
    except (TypeError, RuntimeError):
        raise ValueError("cannot be called with hidden states alone") from None
    normal = x * torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + epsilon)
    for offset in (0, 1):
        if found.shape == x.shape and torch.allclose(found, (weight + offset) * normal, atol=_TOLERANCE):
            return offset
    raise ValueError("computes something other than weight · x / sqrt(mean(x²) + epsilon)")
