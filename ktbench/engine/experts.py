"""Weights of a layer's routed experts, as Transformers holds them, and their output in float32 arithmetic.

Letters: T tokens, k experts of a token, H hidden width, I expert width, E experts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from ktbench.engine.routing import Routing


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpertMatrices:
    """One expert: `gate` and `up` [I, H], `down` [H, I]; biases where the family has them, else None.

    With `clamp` its activation is the clamped SwiGLU of gpt-oss, `(up + 1) · gate · σ(alpha · gate)`.
    """

    gate: Tensor
    up: Tensor
    down: Tensor
    gate_bias: Tensor | None = None
    up_bias: Tensor | None = None
    down_bias: Tensor | None = None
    alpha: float = 1.0
    clamp: float | None = None

    def __call__(self, hidden: Tensor) -> Tensor:
        """[T, H] float32 of `hidden` [T, H] float32."""
        gate = nn.functional.linear(hidden, self.gate.float(), _float(self.gate_bias))
        up = nn.functional.linear(hidden, self.up.float(), _float(self.up_bias))
        return nn.functional.linear(self._glu(gate, up), self.down.float(), _float(self.down_bias))

    def _glu(self, gate: Tensor, up: Tensor) -> Tensor:
        if self.clamp is None:
            return silu(gate) * up
        gate = gate.clamp(max=self.clamp)
        return (up.clamp(-self.clamp, self.clamp) + 1) * gate * torch.sigmoid(self.alpha * gate)


def _float(bias: Tensor | None) -> Tensor | None:
    return None if bias is None else bias.float()


# Gives the matrices of expert i.
ExpertStore = Callable[[int], ExpertMatrices]


class Reference:
    """The experts' output in float32 arithmetic for `hidden` [T, H] float32.

    Each expert is run once, whatever the number of routings asked for.
    """

    def __init__(self, store: ExpertStore, hidden: Tensor) -> None:
        self.hidden = hidden
        self._store = store
        self._outputs: dict[int, Tensor] = {}

    def __call__(self, routing: Routing) -> Tensor:
        """[T, H] float32: the sum over each token's experts of gate weight times output."""
        total = torch.zeros_like(self.hidden)
        for i in sorted(set(routing.ids.flatten().tolist())):
            token, column = (routing.ids == i).nonzero(as_tuple=True)
            total.index_add_(0, token, self._output(i)[token] * routing.gates[token, column, None])
        return total

    def _output(self, i: int) -> Tensor:
        if i not in self._outputs:
            self._outputs[i] = self._store(i)(self.hidden)
        return self._outputs[i]


@dataclass(frozen=True, slots=True)
class OriginalExperts:
    """The module of Transformers: runs the experts one after the other through PyTorch (the base of the breakdown)."""

    module: nn.Module

    def __call__(self, hidden: Tensor, routing: Routing) -> Tensor:
        """[T, H] in the type of `hidden` [T, H]."""
        output: Tensor = self.module(hidden, routing.ids, routing.gates)
        return output

    def bind(self, hidden: Tensor, routing: Routing, _output: Tensor) -> Callable[[], Tensor]:
        """The call on `hidden` [T, H]; the module makes an output of its own every time."""
        return torch.inference_mode()(partial(self, hidden, routing))

    def matrices(self, i: int) -> ExpertMatrices:
        """Views of the weights of expert `i`, out of whichever layout the family uses."""
        module = self.module
        gate_up, down = module.get_parameter("gate_up_proj")[i], module.get_parameter("down_proj")[i]
        if hasattr(module, "gate_up_proj_bias"):
            return _gpt_oss(module, i, gate_up, down)
        gate, up = gate_up.chunk(2, dim=0)
        return ExpertMatrices(gate=gate, up=up, down=down)


def _gpt_oss(module: nn.Module, i: int, gate_up: Tensor, down: Tensor) -> ExpertMatrices:
    """gpt-oss stores its projections transposed, gate and up in turns, with biases."""
    bias = module.get_parameter("gate_up_proj_bias")[i]
    return ExpertMatrices(
        gate=gate_up[:, ::2].T,
        up=gate_up[:, 1::2].T,
        down=down.T,
        gate_bias=bias[::2],
        up_bias=bias[1::2],
        down_bias=module.get_parameter("down_proj_bias")[i],
        alpha=float(module.alpha),  # type: ignore[arg-type]
        clamp=float(module.limit),  # type: ignore[arg-type]
    )
