"""The experts operator: stands where a family's `*Experts` module stood and runs it by PyTorch or by the fused kernel.

Letters: T tokens of a call, k experts of a token, H hidden width, I expert width, E experts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor, nn

from ktbench.engine.experts import ExpertMatrices
from ktbench.engine.routing import PassRouting, Routing, from_router


class Backend(Protocol):
    """The experts of one layer and a way to run them: hidden [T, H] bf16 and a routing in, [T, H] bf16 out."""

    def __call__(self, hidden: Tensor, routing: Routing, /) -> Tensor:
        """The gate-weighted sum over each token's experts."""

    def matrices(self, i: int, /) -> ExpertMatrices:
        """The weights of expert `i`."""


Tap = Callable[[int, Tensor, Routing, Tensor], None]


@dataclass(kw_only=True)
class Pass:
    """How the current forward pass treats the experts; one object, shared by the operators of all layers.

    `replay` overrides the routers where it is not None, `record` collects their choices where it is not None.
    `carried` is what a layer deferred and the next one adds, `tap` sees every call of a backend.
    """

    fused: bool = False
    deferral: int = 0
    skipping: int = 0
    replay: PassRouting | None = None
    record: PassRouting | None = None
    carried: Tensor | None = None
    tap: Tap | None = None
    counted: dict[str, int] = field(default_factory=lambda: {"deferred_experts": 0, "skipped_experts": 0})


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where an operator stands: in decoder layer `layer`, as MoE layer `number`, both counted from 0."""

    layer: int
    number: int
    is_last: bool


class ExpertsOperator(nn.Module):
    """Routed experts of one decoder layer, called as Transformers calls them: (hidden, ids, weights).

    With Expert Deferral layer l gives R_imm[l](x_l) + R_def[l-1](x_[l-1]); residual and shared expert are added by the
    block around it (KTransformers, section 4.1). The last MoE layer defers nothing. Neither deferral nor skipping
    renormalises.
    """

    def __init__(self, place: Place, state: Pass, *, original: Backend | None, fused: Backend | None) -> None:
        super().__init__()
        self.place, self.state = place, state
        self.original, self.fused = original, fused

    @property
    def backend(self) -> Backend:
        """What runs the experts now. Raises ValueError where its weights were not kept at load."""
        chosen = self.fused if self.state.fused else self.original
        if chosen is None:
            raise ValueError(f"{'packed' if self.state.fused else 'original'} expert weights were not kept at load")
        return chosen

    def forward(self, hidden: Tensor, ids: Tensor, gates: Tensor) -> Tensor:
        """[T, H] in the type of `hidden` [T, H]; `ids` and `gates` [T, k] are the router's own."""
        state = self.state
        routing = from_router(ids, gates) if state.replay is None else state.replay[self.place.number]
        if state.record is not None:
            state.record.append(routing)
        if state.skipping:
            return self._skipping(hidden, routing)
        if state.deferral:
            return self._deferring(hidden, routing)
        return self._run(hidden, routing)

    def _skipping(self, hidden: Tensor, routing: Routing) -> Tensor:
        kept, dropped = routing.split(self.state.skipping)
        self.state.counted["skipped_experts"] += dropped.ids.numel()
        return self._run(hidden, kept)

    def _deferring(self, hidden: Tensor, routing: Routing) -> Tensor:
        """What is deferred is computed at once here and only added later: the formula, without overlap."""
        carried = self.state.carried
        if self.place.is_last:
            self.state.carried = None
            output = self._run(hidden, routing)
        else:
            on_time, late = routing.split(self.state.deferral)
            self.state.counted["deferred_experts"] += late.ids.numel()
            output = self._run(hidden, on_time)
            self.state.carried = self._run(hidden, late)
        return output if carried is None else output + carried

    def _run(self, hidden: Tensor, routing: Routing) -> Tensor:
        if routing.ids.shape[-1] == 0:
            return torch.zeros_like(hidden)
        output = self.backend(hidden, routing)
        if self.state.tap is not None:
            self.state.tap(self.place.layer, hidden, routing, output)
        return output
