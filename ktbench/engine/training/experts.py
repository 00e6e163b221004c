"""The module that takes the place of a family's experts: packed, frozen, differentiable, open to LoRA."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ktbench.engine.forms import ExpertsForm
from ktbench.engine.fused import FusedExperts
from ktbench.engine.training.adapters import ExpertAdapter
from ktbench.engine.training.function import Adapters, ExpertBiases, FrozenExperts, experts_autograd

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


class TrainableExperts(nn.Module):
    """Routed experts of one layer, called as Transformers calls them: (hidden, ids, weights).

    They run on the cores: of a network on another device hidden states come from there, and gradients go back.
    `gate_up_proj` and `down_proj` have the shapes of the family's but no numbers: the packed weights are no parameters,
    are in no state dict, and get no gradients. PEFT's `target_parameters` find them, and its LoRA is applied beside.
    """

    def __init__(self, experts: FusedExperts, form: ExpertsForm, *, recompute: bool = True) -> None:
        super().__init__()
        self.form, self.is_transposed = form, form.transposed  # the latter is PEFT's
        self.experts, self.recompute, self._biases = experts, recompute, _biases(experts, form)
        down = (form.experts, form.ffn, form.hidden) if form.transposed else (form.experts, form.hidden, form.ffn)
        self.gate_up_proj = packed_parameter(form.gate_up_shape)
        self.down_proj = packed_parameter(down)

    def forward(self, hidden: Tensor, ids: Tensor, gates: Tensor) -> Tensor:
        """[T, H] in the type of `hidden` [T, H]; `ids` and `gates` [T, k] are the router's own."""
        frozen = FrozenExperts(
            experts=self.form.experts,
            products=self.experts.products(),
            glu=self.form.glu,
            biases=self._biases,
            fused=self.experts,
            recompute=self.recompute,
        )
        output = experts_autograd(
            frozen, hidden.to("cpu", torch.bfloat16), ids.long().cpu(), gates.cpu(), self.adapters()
        )
        return output.to(hidden.device, hidden.dtype)

    def adapters(self) -> Adapters:
        """The LoRA that is active now, rows of gate before rows of up whatever the family's order."""
        gate_up, down = self._adapter(self.gate_up_proj), self._adapter(self.down_proj)
        if gate_up is not None and self.form.interleaved:
            rows = torch.cat([gate_up.b[:, ::2], gate_up.b[:, 1::2]], dim=1)
            gate_up = ExpertAdapter(a=gate_up.a, b=rows, scale=gate_up.scale)
        return Adapters(gate_up=gate_up, down=down)

    def _adapter(self, weight: Tensor) -> ExpertAdapter | None:
        found: LowRank | None = weight.low_rank if isinstance(weight, PackedWeight) else None
        if found is None:
            return None
        if self.form.transposed:
            return ExpertAdapter(a=found.left.mT, b=found.right.mT, scale=found.scale)
        return ExpertAdapter(a=found.right, b=found.left, scale=found.scale)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        """Nothing: what stands for packed weights is no weight."""

    def _load_from_state_dict(self, *_arguments: Any) -> None:
        """Nothing, see above."""


def _biases(experts: FusedExperts, form: ExpertsForm) -> ExpertBiases | None:
    if not form.biases:
        return None
    parts = [one.biases for one in map(experts.matrices, range(form.experts)) if one.biases is not None]
    return ExpertBiases(
        gate_up=torch.stack([torch.cat([part.gate, part.up]) for part in parts]),
        down=torch.stack([part.down for part in parts]),
    )
