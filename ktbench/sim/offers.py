"""What the machines of a price list would do: the speed of one cell on each, and what it costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ktbench.sim.cell import simulate
from ktbench.sim.sensitivity import Bottleneck, bottleneck
from ktbench.spec.run_spec import WITHOUT_AMX, RunSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class Offer:
    """One machine at its price, and the features that a cell would run with on it.

    `tokens_per_s` is simulated, None where the cell cannot run there: `why` says why.
    """

    title: str
    price: float
    features: str
    tokens_per_s: float | None = None
    bottleneck: Bottleneck | None = None
    why: str = ""

    @property
    def price_per_speed(self) -> float | None:
        """Price of a token/s; None where there is no speed."""
        return None if self.tokens_per_s is None else self.price / self.tokens_per_s


def with_all_features(spec: RunSpec) -> RunSpec:
    """A cell with every feature on that its machine and precision have, deferral, skipping and placement as they are.

    All need the fused operator, and the lean device role is for machines without a GPU. Raises ValueError for a cell
    without a machine.
    """
    if spec.machine is None:
        raise ValueError("machine: names no machine to simulate on")
    reasons = spec.machine.feature_reasons
    avx512, numa, cuda_graph = (not reasons[name] for name in ("avx512", "numa", "cuda_graph"))
    amx = not reasons["amx"] and spec.precision not in WITHOUT_AMX
    if not (avx512 or amx):
        return replace(
            spec,
            engine=replace(
                spec.engine, avx512=False, amx=False, dynamic=False, numa=False, cuda_graph=False, packed_dense=False
            ),
        )
    return replace(
        spec, engine=replace(spec.engine, avx512=avx512, amx=amx, dynamic=True, numa=numa, cuda_graph=cuda_graph, packed_dense=not cuda_graph)
    )


def offer(spec: RunSpec, title: str, price: float, why: str = "") -> Offer:
    """A cell simulated on its machine as it is; not at all where there is a reason `why` it cannot run there."""
    if not why:
        try:
            speed = spec.workload.tokens_per_step / simulate(spec).step_s
            return Offer(title=title, price=price, features=spec.label, tokens_per_s=speed, bottleneck=bottleneck(spec))
        except ValueError as error:
            why = str(error)
    return Offer(title=title, price=price, features=spec.label, why=why)


def cheapest(offers: Sequence[Offer], target: float) -> Offer | None:
    """The one of lowest price that does `target` tokens/s, of several the fastest; None where none does."""
    reaching = [one for one in offers if (one.tokens_per_s or 0.0) >= target]
    return min(reaching, key=lambda one: (one.price, -(one.tokens_per_s or 0.0)), default=None)


def closest(offers: Sequence[Offer]) -> Offer | None:
    """The fastest one; None where none has a speed."""
    return max((one for one in offers if one.tokens_per_s), key=lambda one: one.tokens_per_s or 0.0, default=None)
