"""Builds the system that a worker's cells ask for."""

from __future__ import annotations

from collections.abc import Sequence

from ktbench.core.spec import RunSpec
from ktbench.engine.protocol import System


def open_system(specs: Sequence[RunSpec], cores: int) -> System:
    """The system for cells that share weights, on so many cores: loads once, in every layout that a cell needs."""
    from ktbench.engine.load import load

    fused = [spec.engine.fused for spec in specs]
    return load(
        specs[0].model,
        cores=cores,
        keep_original=not all(fused),
        keep_packed=any(fused),
    )
