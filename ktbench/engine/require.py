"""What stands before every configuration of our engine's systems."""

from __future__ import annotations

from typing import TypeVar

from ktbench.engine.protocol import Unsupported
from ktbench.spec.run_spec import ModelSpec, RunSpec
from ktbench.spec.support import unsupported

T = TypeVar("T")


def require(spec: RunSpec, loaded: ModelSpec) -> None:
    """Raises ValueError for another model than is loaded, and Unsupported with the reason for what cannot run."""
    if spec.model != loaded:
        raise ValueError(f"model {spec.model.name} was asked for, {loaded.name} is loaded")
    if why := unsupported(spec):
        raise Unsupported(why)


def configured(part: T | None) -> T:
    """What `configure` sets. Raises ValueError where it was not called yet."""
    if part is None:
        raise ValueError("configure comes before every other call")
    return part
