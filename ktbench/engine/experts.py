"""The experts operator: replaces a family's `*Experts` module and has the host role run the routed experts.

Letters: T tokens of a call, k experts of a token, H hidden width.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ktbench.engine.backend import DeferredExperts, ExpertsBackend, MoERuntimeState
from ktbench.engine.decode.lazy import Fetch, LazyTensor, resolve_lazy
from ktbench.engine.decode.timeline import Where
from ktbench.engine.forms import ExpertFunction, ExpertMatrices, ExpertsPosition, read_form
from ktbench.engine.inject.own_features import LayerExperts, OwnFeature
from ktbench.engine.routing import Residence, Routing, from_router


class ExpertsOperator(nn.Module):
    """Routed experts of one decoder layer, called as Transformers calls them: (hidden, ids, weights).

    With Expert Deferral layer l gives R_imm[l](x_l) + R_def[l-1](x_[l-1]); residual and shared expert are added by the
    block around it (KTransformers, section 4.1). The last MoE layer defers nothing. Neither deferral nor skipping
    renormalises. With concurrent roles the result is a tensor that is waited for when it is first used.
    """

    def __init__(
        self,
        position: ExpertsPosition,
        state: MoERuntimeState,
        *,
        original: ExpertsBackend | None,
        fused: ExpertsBackend | None,
    ) -> None:
        super().__init__()
        self.position, self.state = position, state
        self.original, self.fused = original, fused
        self.device_backend: ExpertsBackend | None = None
        self.residence: Residence | None = None

    @property
    def backend(self) -> ExpertsBackend:
        """What runs the experts now. Raises ValueError where its weights were not kept at load."""
        chosen = self.fused if self.state.fused else self.original
        if chosen is None:
            raise ValueError(f"{'packed' if self.state.fused else 'original'} expert weights were not kept at load")
        for own in self.state.own:
            if own.has("run"):
                chosen = OwnExperts(chosen, own, self)
        return chosen

    def forward(self, hidden: Tensor, ids: Tensor, gates: Tensor) -> Tensor:
        """[T, H] in the type of `hidden` [T, H]; `ids` and `gates` [T, k] are the router's own."""
        hidden, state = resolve_lazy(hidden), self.state
        routing = from_router(ids, gates) if state.routing is None else state.routing[self.position.number]
        if state.idle is not None:
            routing = Routing(ids=routing.ids.masked_fill(state.idle, -1), gates=routing.gates)
        if state.record is not None:
            state.record.append(routing)
        fetch = self._begin(hidden, routing)
        if not state.concurrent:
            return fetch()
        return LazyTensor(fetch, hidden.shape, hidden.dtype, hidden.device)

    def _begin(self, hidden: Tensor, routing: Routing) -> Fetch:
        state = self.state
        immediate, deferred = self._split(routing)
        previous, state.pending = state.pending, None
        begin = self._start if state.tap is None else self._observed
        fetch, state.pending = begin(hidden, immediate, deferred, previous)
        return fetch

    def _split(self, routing: Routing) -> tuple[Routing, Routing | None]:
        """The immediate experts, and those that the next layer adds."""
        state = self.state
        for own in state.own:
            if own.has("choose"):
                routing = self._chosen(own, routing)
        if skipping := state.engine.skipping:
            immediate, dropped = self._parts(routing, skipping)
            self._count("skipped_experts", dropped)
            return immediate, None
        if self.position.is_last:
            return routing, None
        immediate, deferred = routing, None
        if deferral := state.engine.deferral:
            assert deferral != "auto"
            immediate, deferred = self._parts(routing, deferral)
            self._count("deferred_experts", deferred)
        for own in state.own:
            if own.has("defer"):
                immediate, more = self._deferred(own, immediate)
                deferred = more if deferred is None else deferred.beside(more)
        return immediate, deferred

    def _chosen(self, own: OwnFeature, routing: Routing) -> Routing:
        chosen, tokens = own.choose(self.position.layer, routing), self.state.acts_on
        if tokens is not None:
            chosen = chosen.where(tokens[:, None], routing)
        self.count_pairs(own, (chosen.ids != routing.ids) | (chosen.gates != routing.gates))
        return chosen

    def _deferred(self, own: OwnFeature, routing: Routing) -> tuple[Routing, Routing]:
        later, tokens = own.defer(self.position.layer, routing) & (routing.ids >= 0), self.state.acts_on
        if tokens is not None:
            later = later & tokens[:, None]
        self.count_pairs(own, later)
        return routing.without(later), routing.without(~later)

    def _parts(self, routing: Routing, lowest: int) -> tuple[Routing, Routing]:
        tokens = self.state.acts_on
        return routing.split(lowest) if tokens is None else routing.split_some(lowest, tokens)

    def _start(
        self, hidden: Tensor, immediate: Routing, deferred: Routing | None, previous: DeferredExperts | None
    ) -> tuple[Fetch, DeferredExperts | None]:
        """Begins a call on both roles; the device's share is done here and now."""
        host_immediate, device_immediate = self._divide(immediate)
        host_deferred, device_deferred = (None, None) if deferred is None else self._divide(deferred)
        waiting = None if previous is None else previous.fetch
        fetch, later = self._start_on_host(hidden, host_immediate, host_deferred, waiting)
        pending = None if later is None else DeferredExperts(later, self._run_on_device(hidden, device_deferred))
        on_device = [self._run_on_device(hidden, device_immediate), None if previous is None else previous.on_device]
        parts = [part for part in on_device if part is not None]
        return (lambda: sum(parts, fetch())) if parts else fetch, pending

    def _start_on_host(
        self, hidden: Tensor, immediate: Routing, deferred: Routing | None, previous: Fetch | None
    ) -> tuple[Fetch, Fetch | None]:
        if immediate.ids.shape[-1]:
            return self.backend.begin(hidden, immediate, deferred, previous)
        pending = None if deferred is None else self.backend.start(hidden, deferred)
        return previous or (lambda: torch.zeros_like(hidden)), pending

    def _observed(
        self, hidden: Tensor, immediate: Routing, deferred: Routing | None, previous: DeferredExperts | None
    ) -> tuple[Fetch, DeferredExperts | None]:
        """The same, one part after the other and each seen by the tap."""
        output = self._tapped(hidden, immediate)
        later = None if deferred is None else self._tapped(hidden, deferred)
        pending = None if later is None else DeferredExperts(lambda: later, None)
        return (lambda: output if previous is None else output + previous.fetch()), pending

    def run_all(self, hidden: Tensor, routing: Routing) -> Tensor:
        """[T, H] of `hidden` [T, H]: all experts of `routing` on both roles, none deferred or skipped."""
        fetch, _ = self._start(hidden, routing, None, None)
        return fetch()

    def _tapped(self, hidden: Tensor, routing: Routing) -> Tensor:
        output = self.run_all(hidden, routing)
        if self.state.tap is not None and routing.ids.shape[-1]:
            self.state.tap(self.position.layer, hidden, routing, output)
        return output

    def _divide(self, routing: Routing) -> tuple[Routing, Routing | None]:
        """The host's part and the device's."""
        if self.residence is None or self.device_backend is None:
            return routing, None
        hosts, devices = self.residence.split(routing.ids)
        return Routing(ids=hosts, gates=routing.gates), Routing(ids=devices, gates=routing.gates)

    def _run_on_device(self, hidden: Tensor, routing: Routing | None) -> Tensor | None:
        return None if routing is None or self.device_backend is None else self.device_backend(hidden, routing)

    def _count(self, name: str, routing: Routing) -> None:
        state, columns = self.state, routing.ids.shape[1]
        tokens = len(routing.ids) if state.acts_on is None else int(state.acts_on.sum())
        idle = None if state.idle is None else state.idle.numpy()  # of each replay, which PyTorch is not to record

        def count() -> None:
            state.counted[name] += columns * (tokens if idle is None else tokens - int(idle.sum()))

        self.state.recorder.do(count)

    def count_pairs(self, own: OwnFeature, pairs: Tensor) -> None:
        """Count, in every replay anew, the pairs of a token and an expert, bool [T, k], that a feature acts on."""
        counted, name, held = self.state.counted, own.feature.counter, pairs.numpy()

        def count() -> None:
            counted[name] += int(held.sum())

        self.state.recorder.do(count)


class SharedExpert(nn.Module):
    """Stands where a block's shared experts stood: hidden [..., H], and what else a family gives them, to [..., H]."""

    def __init__(self, original: nn.Module, state: MoERuntimeState, layer: int | None) -> None:
        super().__init__()
        self.original, self.state = original, state
        self._where = Where("shared", layer)

    def forward(self, hidden: Tensor, *others: Any, **named: Any) -> Tensor:
        """What the original gives; with concurrent roles a tensor that is computed when it is first used."""
        if not self.state.concurrent:
            return self._run(hidden, *others, **named)
        run = partial(self._run, hidden, *others, **named)
        return LazyTensor(run, hidden.shape, hidden.dtype, hidden.device, waits=False)

    def _run(self, hidden: Tensor, *others: Any, **named: Any) -> Tensor:
        watch = self.state.recorder.watch
        watch.enter(self._where)
        output: Tensor = self.original(hidden, *others, **named)
        watch.leave()
        return output


class OwnExperts(ExpertsBackend):
    """The experts of one layer as a feature from outside runs them, on the weights of another backend."""

    def __init__(self, inner: ExpertsBackend, own: OwnFeature, operator: ExpertsOperator) -> None:
        self._inner, self._own, self._operator = inner, own, operator

    def __call__(self, hidden: Tensor, routing: Routing) -> Tensor:
        """[T, H] in the type of `hidden`."""
        self._operator.count_pairs(self._own, routing.ids >= 0)
        layer = self._operator.position.layer
        return self._own.run(layer, hidden, routing, LayerExperts(self._inner, self._inner.matrices))

    def matrices(self, i: int) -> ExpertMatrices:
        """See `ExpertsBackend`."""
        return self._inner.matrices(i)

    def in_float32(self, i: int) -> ExpertFunction:
        """See `ExpertsBackend`."""
        return self._inner.in_float32(i)


class OriginalExperts(ExpertsBackend):
    """The module of Transformers: runs the experts one after the other through PyTorch (the base of the breakdown).

    Raises ValueError for a module that `read_form` refuses.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module, self.form = module, read_form(module)

    def __call__(self, hidden: Tensor, routing: Routing) -> Tensor:
        """[T, H] in the type of `hidden`. An id of -1, which not every family skips, becomes expert 0 of weight 0."""
        ids, gates, absent = routing.ids, routing.gates, routing.ids < 0
        if absent.any():
            ids, gates = ids.masked_fill(absent, 0), gates.masked_fill(absent, 0)
        output: Tensor = self.module(hidden, ids, gates)
        return output

    def bind(self, hidden: Tensor, routing: Routing, _output: Tensor) -> Callable[[], Tensor]:
        """The call on `hidden` [T, H]; the module makes an output of its own every time."""
        return torch.inference_mode()(partial(self, hidden, routing))

    def matrices(self, i: int) -> ExpertMatrices:
        """Views of the weights of expert `i`."""
        return self.form.matrices(self.module, i)
