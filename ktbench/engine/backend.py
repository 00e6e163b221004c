"""What runs the routed experts of a layer, and how the current pass treats them.

Letters: T tokens of a call, H hidden width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from ktbench.engine.decode.lazy import Fetch
from ktbench.engine.decode.program import CallRecorder
from ktbench.engine.forms import ExpertFunction, ExpertMatrices
from ktbench.engine.inject.own_features import OwnFeature
from ktbench.engine.routing import PassRouting, Routing
from ktbench.spec.engine import EngineSpec
from ktbench.spec.features import FEATURES


class ExpertsBackend(Protocol):
    """The experts of one layer and a way to run them: hidden [T, H] bf16 and a routing in, [T, H] bf16 out."""

    def __call__(self, hidden: Tensor, routing: Routing, /) -> Tensor:
        """The gate-weighted sum over each token's experts. An id of -1 selects no expert."""

    def start(self, hidden: Tensor, routing: Routing, /) -> Fetch:
        """Begins the same; what is returned waits for it.

        By default the whole call, which is done when it returns or has put its work into the device's own order.
        """
        output = self(hidden, routing)
        return lambda: output

    def begin(
        self, hidden: Tensor, immediate: Routing, deferred: Routing | None, previous: Fetch | None, /
    ) -> tuple[Fetch, Fetch | None]:
        """Begins the `immediate` experts of this layer and the `deferred` ones; gives what waits for each.

        The first adds what the layer before deferred, `previous`; the second is for the next layer.
        """
        fetch = self.start(hidden, immediate)
        pending = None if deferred is None else self.start(hidden, deferred)
        return (fetch if previous is None else lambda: fetch() + previous()), pending

    def matrices(self, i: int, /) -> ExpertMatrices:
        """The weights of expert `i`."""
        raise NotImplementedError

    def in_float32(self, i: int, /) -> ExpertFunction:
        """Expert `i` of the weights that are stored, which quantised ones stand for: the truth for this backend."""
        return self.matrices(i)


@dataclass(frozen=True, slots=True)
class DeferredExperts:
    """What a layer deferred: the host's part, waited for by `fetch`, and the device's, [T, H] or none."""

    fetch: Fetch
    on_device: Tensor | None


Tap = Callable[[int, Tensor, Routing, Tensor], None]


@dataclass(kw_only=True)
class MoERuntimeState:
    """How the current forward pass treats the experts; one object, shared by the operators of all layers.

    `routing` is that of the pass, in place of the routers', where it is not None; `record` collects the routing of
    calls where it is not None. `engine` has the features that act, `own` those from outside; where they route it is for
    tokens `acts_on` bool [T], for all where that is None. Rows `idle` bool [T, 1] are padding, and not routed.
    `concurrent` is whether host and device role work at the same time. `pending` is what a layer deferred and the next
    one adds, `tap` sees every call of a backend.
    """

    recorder: CallRecorder = field(default_factory=CallRecorder)
    fused: bool = False
    concurrent: bool = False
    engine: EngineSpec = field(default_factory=EngineSpec)
    own: Sequence[OwnFeature] = ()
    acts_on: Tensor | None = None
    idle: Tensor | None = None
    routing: PassRouting | None = None
    record: list[Routing] | None = None
    pending: DeferredExperts | None = None
    tap: Tap | None = None
    counted: dict[str, int] = field(default_factory=lambda: {one.counter: 0 for one in FEATURES if one.routes})

    def use_own(self, own: Sequence[OwnFeature]) -> None:
        """Features from outside that act from now on; what they do is counted from then on."""
        self.own = own
        for one in own:
            self.counted.setdefault(one.feature.counter, 0)

    def begin(self, routing: PassRouting | None) -> None:
        """A pass begins, with this routing of its layers or with the routers' own."""
        self.pending, self.routing = None, routing
