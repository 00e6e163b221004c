"""The forms of RMS norms and routers, found by running the modules on random numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

_EPSILONS = ("variance_epsilon", "eps")
_NORM_ROWS = 3
_TOLERANCE = 1e-4

_ROUTER_ROWS = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class NormForm:
    """y = (weight + offset) · x / sqrt(mean(x²) + epsilon) over the last dimension; `offset` is 0 or 1."""

    epsilon: float
    offset: int


def read_norm(module: nn.Module) -> NormForm:
    """The form of an RMS norm, wherever its weight is (`meta` included).

    Some families store the distance of the weight from one (Qwen3-Next, Gemma), under class names that do not tell.
    So the module is called with numbers in place of its weight. Raises ValueError naming what differs.
    """
    weight = module._parameters.get("weight")
    if weight is None or weight.dim() != 1 or len(list(module.parameters())) != 1:
        raise ValueError("has no 1-D weight as its only parameter")
    epsilon = next((getattr(module, name) for name in _EPSILONS if hasattr(module, name)), None)
    if not isinstance(epsilon, float):
        raise ValueError(f"has no epsilon called {' or '.join(_EPSILONS)}")
    return NormForm(epsilon=epsilon, offset=_offset(module, len(weight), epsilon))


def _offset(module: nn.Module, width: int, epsilon: float) -> int:
    numbers = torch.randn(_NORM_ROWS + 1, width, generator=torch.Generator().manual_seed(0))
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


@dataclass(frozen=True, kw_only=True, slots=True)
class RouterForm:
    """Softmax over the logits of all experts, and the `top_k` largest of it: (logits, weights, ids).

    `renormalised`: weights are divided by their sum; `weights` is their type for hidden states in bf16.
    """

    top_k: int
    renormalised: bool
    weights: torch.dtype


def read_router(module: nn.Module) -> RouterForm:
    """The form of a router in bf16, wherever its weight is (`meta` included).

    It is called with numbers in place of its weight. Raises ValueError naming what differs.
    """
    weight = module._parameters.get("weight")
    if weight is None or weight.dim() != 2 or len(list(module.parameters())) != 1 or list(module.buffers()):
        raise ValueError("has no 2-D weight as all that it holds")
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(_ROUTER_ROWS, weight.shape[1], generator=draw).bfloat16()
    drawn = (torch.randn(weight.shape, generator=draw) / weight.shape[1] ** 0.5).bfloat16()
    with torch.inference_mode():
        logits, weights, ids = _call(module, x, drawn)
        truth = nn.functional.linear(x, drawn)
        if logits.dtype != torch.bfloat16 or not torch.equal(logits, truth):
            raise ValueError("gives other logits than weight · x in bf16")
        return _form(truth, weights, ids)


def _call(module: nn.Module, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    try:
        found: Any = functional_call(module, {"weight": weight}, (x,))
    except (TypeError, RuntimeError):
        raise ValueError("cannot be called with hidden states alone") from None
    if not isinstance(found, tuple) or len(found) != 3 or not all(isinstance(one, Tensor) for one in found):
        raise ValueError("does not give three tensors: logits, weights, ids")
    return found


def _form(logits: Tensor, weights: Tensor, ids: Tensor) -> RouterForm:
    if weights.shape != ids.shape or ids.dim() != 2 or weights.dtype not in (torch.bfloat16, torch.float32):
        raise ValueError("does not give weights and ids for each token, in bf16 or float32")
    largest, chosen = torch.softmax(logits, dim=-1, dtype=torch.float32).topk(ids.shape[1], dim=-1)
    if torch.equal(ids, chosen):
        for renormalised in (False, True):
            expected = largest / largest.sum(dim=-1, keepdim=True) if renormalised else largest
            if torch.allclose(weights, expected.to(weights.dtype)):
                return RouterForm(top_k=ids.shape[1], renormalised=renormalised, weights=weights.dtype)
    raise ValueError("computes something other than the largest of the softmax over all experts")
