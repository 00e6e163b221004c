"""The routed experts of one layer as a differentiable function: frozen matrices, gradients of everything else.

With slot s of token t and expert e: scores = W_gu x_t, h = glu(scores), y = W_d h, out_t = Σ gate_s y_s, where LoRA may
be added to either product. Backward, for the gradient g of out:
  back_s = W_dᵀ g_t, and the gate's gradient is back_s · h_s, so that y is neither kept nor computed again;
  the scores' is glu'(scores) (gate_s back_s), the input's Σ W_guᵀ of that.

Letters: T tokens, k experts of a token, S slots, H hidden width, I expert width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import silu

from ktbench.engine.forms import Glu
from ktbench.engine.routing import Routing
from ktbench.engine.training.adapters import ExpertAdapter
from ktbench.engine.training.products import Products
from ktbench.engine.training.slots import LoraSlots


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpertBiases:
    """Of all experts: `gate_up` [E, 2I], `down` [E, H]."""

    gate_up: Tensor
    down: Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class FrozenExperts:
    """The frozen part of one layer. `fused` is the operator of inference, [T, H] of hidden states and a routing.

    With `recompute` the backward pass multiplies gate and up again instead of keeping their products, [S, 2I].
    """

    experts: int
    products: Products
    glu: Glu
    biases: ExpertBiases | None = None
    fused: Callable[[Tensor, Routing], Tensor] | None = None
    recompute: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Adapters:
    """LoRA of a layer's gate and up, as one matrix, and of its down; None: not adapted."""

    gate_up: ExpertAdapter | None = None
    down: ExpertAdapter | None = None

    @property
    def factors(self) -> tuple[Tensor | None, ...]:
        """A and B of gate and up, then of down."""
        return tuple(
            factor for one in (self.gate_up, self.down) for factor in ((None, None) if one is None else (one.a, one.b))
        )


NOT_ADAPTED = Adapters()


def experts_autograd(
    frozen: FrozenExperts, hidden: Tensor, ids: Tensor, gates: Tensor, adapters: Adapters = NOT_ADAPTED
) -> Tensor:
    """[T, H] in the type of `hidden` [T, H], differentiable in it, in `gates` [T, k] and in the adapters' factors.

    `ids` is int64 [T, k]; -1 is no expert. Raises IndexError for an id that is no expert.
    """
    arguments = frozen, adapters, hidden, ids, gates, *adapters.factors
    output: Tensor = _Experts.apply(*arguments)  # type: ignore[no-untyped-call]
    return output


class _Experts(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        frozen: FrozenExperts,
        adapters: Adapters,
        hidden: Tensor,
        ids: Tensor,
        gates: Tensor,
        *_factors: Tensor | None,
    ) -> Tensor:
        slots, scores = LoraSlots.of(ids, frozen.experts), None
        if adapters == NOT_ADAPTED and frozen.recompute and frozen.fused is not None:
            output = frozen.fused(hidden, Routing(ids=ids.contiguous(), gates=gates.float().contiguous()))
        else:
            scores = _scores(frozen, adapters, hidden, slots)
            output = slots.add_up(_down(frozen, adapters, _gate(frozen.glu, scores), slots), gates)
        kept = None if frozen.recompute or scores is None else scores.to(hidden.dtype)
        ctx.save_for_backward(hidden, gates, kept)
        ctx.frozen, ctx.adapters, ctx.slots = frozen, adapters, slots
        return output.to(hidden.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        hidden, gates, kept = ctx.saved_tensors
        frozen, adapters, slots = ctx.frozen, ctx.adapters, ctx.slots
        scores = _scores(frozen, adapters, hidden, slots) if kept is None else kept
        step = _Backward(frozen, adapters, slots, hidden, gates, scores, grad)
        wants_input, wants_gates = ctx.needs_input_grad[2], ctx.needs_input_grad[4]
        inputs, factors = step.through_scores(wants_input)
        return (
            None,
            None,
            inputs if wants_input else None,
            None,
            step.of_gates() if wants_gates else None,
            *factors,
            *step.of_down(),
        )


def _scores(frozen: FrozenExperts, adapters: Adapters, hidden: Tensor, slots: LoraSlots) -> Tensor:
    """[S, 2I]: what gate and up give, in the type of the products."""
    scores = frozen.products.forward("gate_up", hidden, slots.token, slots)
    if adapters.gate_up is not None:
        adapters.gate_up.add_to(scores, lambda group: hidden[slots.token[group]], slots)
    if frozen.biases is not None:
        _add_biases(scores, frozen.biases.gate_up, slots)
    return scores


def _down(frozen: FrozenExperts, adapters: Adapters, gated: Tensor, slots: LoraSlots) -> Tensor:
    """[S, H] of `gated` [S, I]."""
    outputs = frozen.products.forward("down", gated, slots.rows, slots)
    if adapters.down is not None:
        adapters.down.add_to(outputs, lambda group: gated[group], slots)
    if frozen.biases is not None:
        _add_biases(outputs, frozen.biases.down, slots)
    return outputs


def _add_biases(products: Tensor, biases: Tensor, slots: LoraSlots) -> None:
    for expert, group in slots.groups():
        products[group] += biases[expert]


def _gate(glu: Glu, scores: Tensor) -> Tensor:
    gate, up = scores.chunk(2, dim=-1)
    return silu(gate) * up if glu == Glu() else glu(gate, up)  # the former in fewer passes


class _Backward:
    """The backward pass of one call: `grad` [T, H] is the output's gradient, `scores` [S, 2I] what gate and up gave."""

    def __init__(  # noqa: PLR0913, PLR0917
        self,
        frozen: FrozenExperts,
        adapters: Adapters,
        slots: LoraSlots,
        hidden: Tensor,
        gates: Tensor,
        scores: Tensor,
        grad: Tensor,
    ) -> None:
        self._frozen, self._adapters, self._slots, self._hidden = frozen, adapters, slots, hidden
        self._back = frozen.products.transposed("down", grad, slots.token, slots)
        self._weights = slots.of_places(gates).to(self._back.dtype)
        self._grad = grad.to(self._back.dtype)
        with torch.enable_grad():
            self._scores = scores.detach().to(self._back.dtype).requires_grad_()
            self._gate = _gate(frozen.glu, self._scores)
        self._of_down: tuple[Tensor | None, Tensor | None] = (None, None)
        if adapters.down is not None:
            gated, token = self._gate.detach(), slots.token
            self._of_down = adapters.down.gradients(
                lambda group: gated[group], lambda group: self._grad[token[group]], self._back, slots, self._weights
            )

    def of_down(self) -> tuple[Tensor | None, Tensor | None]:
        """Of the factors of the adapter of down."""
        return self._of_down

    def of_gates(self) -> Tensor:
        """[T, k]."""
        frozen, slots = self._frozen, self._slots
        of_slots = torch.linalg.vecdot(self._back, self._gate.detach())
        if frozen.biases is not None:
            for expert, group in slots.groups():
                of_slots[group] += self._grad[slots.token[group]] @ frozen.biases.down[expert].to(of_slots.dtype)
        return slots.to_places(of_slots)

    def through_scores(self, wants_input: bool) -> tuple[Tensor | None, tuple[Tensor | None, Tensor | None]]:
        """Of the hidden states, [T, H], and of the factors of the adapter of gate and up."""
        slots, adapter, hidden = self._slots, self._adapters.gate_up, self._hidden
        if not wants_input and adapter is None:
            return None, (None, None)
        (grads,) = torch.autograd.grad(self._gate, self._scores, self._back * self._weights[:, None])
        inputs = None
        if wants_input:
            inputs = self._frozen.products.transposed("gate_up", grads, slots.rows, slots)
        factors: tuple[Tensor | None, Tensor | None] = (None, None)
        if adapter is not None:
            factors = adapter.gradients(
                lambda group: hidden[slots.token[group]], lambda group: grads[group], inputs, slots
            )
        return None if inputs is None else slots.add_up(inputs).to(hidden.dtype), factors
