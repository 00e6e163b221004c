"""Builds the system that a worker's cells ask for."""

from __future__ import annotations

from collections.abc import Sequence

from ktbench.core.spec import RunSpec
from ktbench.engine.packing import Packing
from ktbench.engine.protocol import HostRole, System


def open_system(specs: Sequence[RunSpec], cores: int, cache_bytes: int = 0, nodes: Sequence[int] = (0,)) -> System:
    """The system for cells that share weights: loads once, in every layout that a cell needs.

    It may use so many cores, which lie on these NUMA nodes and share `cache_bytes` of last-level cache (0: not known).
    """
    host = HostRole(cores=cores, nodes=tuple(nodes), cache_bytes=cache_bytes)
    fused = [spec.engine.fused for spec in specs]
    keep_original, packing = not all(fused), Packing.of(specs[0], host) if any(fused) else None
    if specs[0].workload.phase == "layer":
        from ktbench.engine.load_layer import load_layer

        return load_layer(specs[0].model, host=host, keep_original=keep_original, packing=packing)
    from ktbench.engine.load import load

    return load(specs[0].model, cores=host.cores, keep_original=keep_original, packing=packing)
