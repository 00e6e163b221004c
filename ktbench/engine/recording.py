"""Records an activation profile: which experts the routers of a model choose over the steps of a workload."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from ktbench.engine.workload.recorded import ActivationProfile, Architecture, count_selections
from ktbench.spec.run_spec import RunSpec

if TYPE_CHECKING:
    from ktbench.engine.routing import PassRouting


class Recordable(Protocol):
    """What the hybrid engine offers to be recorded."""

    def configure(self, spec: RunSpec) -> None:
        """Run the workload of `spec` once and keep what its routers chose."""

    def recorded_routing(self) -> Sequence[PassRouting]:
        """Ids [T, k] of every MoE layer, for each pass of the workload."""


def record_profile(open_engine: Callable[[RunSpec], Recordable], spec: RunSpec) -> ActivationProfile:
    """The profile of one cell with routing=model; what the routers chose for padding counts too.

    Raises Unsupported where the engine cannot run the cell.
    """
    engine = open_engine(spec)
    engine.configure(spec)
    steps = [[layer.ids.cpu().numpy() for layer in step] for step in engine.recorded_routing()]
    experts = spec.model.shape.experts
    counts = [sum(count_selections(ids, experts) for ids in layer) for layer in zip(*steps, strict=True)]
    work = spec.workload
    return ActivationProfile(
        model=spec.model.name,
        architecture=Architecture.of(spec.model),
        counts=np.stack(counts),
        tokens=sum(int((step[0] >= 0).any(axis=1).sum()) for step in steps),
        source=f"{spec.summary}; workload.steps={work.steps}, workload.seed={work.seed}, model.seed={spec.model.seed}",
    )
