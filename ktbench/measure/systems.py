"""Builds the system that a worker's cells ask for."""

from __future__ import annotations

from collections.abc import Sequence

from ktbench.core.spec import RunSpec
from ktbench.engine.protocol import System


def open_system(specs: Sequence[RunSpec]) -> System:
    """The system for cells that share weights: loads them once, in every layout that one of the cells needs."""
    from ktbench.engine.load import load

    fused = [spec.engine.fused for spec in specs]
    return load(
        specs[0].model,
        threads=specs[0].engine.threads,
        keep_original=not all(fused),
        keep_packed=any(fused),
    )
