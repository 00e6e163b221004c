"""What stands before every configuration of our engine's systems."""

from __future__ import annotations

from ktbench.core.spec import ModelSpec, RunSpec
from ktbench.engine.protocol import Unsupported
from ktbench.engine.support import unsupported


def require(spec: RunSpec, loaded: ModelSpec) -> None:
    """Raises ValueError for another model than is loaded, and Unsupported with the reason for what cannot run."""
    if spec.model != loaded:
        raise ValueError(f"model {spec.model.name} was asked for, {loaded.name} is loaded")
    if why := unsupported(spec):
        raise Unsupported(why)
