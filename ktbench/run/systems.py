"""Builds the system that a worker's cells ask for."""

from __future__ import annotations

from collections.abc import Sequence

from ktbench.engine.protocol import HostRole, System
from ktbench.engine.weight_plan import WeightPlan
from ktbench.peers.opening import open_peer
from ktbench.spec.run_spec import RunSpec


def open_system(
    specs: Sequence[RunSpec], cpus: Sequence[int], cache_bytes: int = 0, nodes: Sequence[int] = (0,)
) -> System:
    """The system for cells that share weights: loads once, in every layout that a cell needs.

    `cpus` has one cpu of every core that it may use; they lie on these NUMA nodes and share `cache_bytes` of
    last-level cache (0: not known).
    """
    host = HostRole(cores=len(cpus), cpus=tuple(cpus), nodes=tuple(nodes), cache_bytes=cache_bytes)
    if specs[0].system != "ktbench":
        return open_peer(specs, host)
    holding = WeightPlan.of(specs, host)
    if specs[0].workload.phase == "layer":
        from ktbench.engine.load_layer import load_layer

        return load_layer(specs[0].model, host=host, keep_original=holding.original, packing=holding.packing)
    from ktbench.engine.load import load_engine

    return load_engine(specs[0].model, holding, host)
