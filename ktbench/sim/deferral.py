"""Cells with another number of deferred experts."""

from __future__ import annotations

from dataclasses import replace

from ktbench.spec.run_spec import RunSpec

# At least so many of a token's experts stay on time (KTransformers, section 4.2).
LEAST_ON_TIME = 2


def with_deferral(spec: RunSpec, count: int) -> RunSpec:
    """The cell with so many experts deferred."""
    return replace(spec, engine=replace(spec.engine, deferral=count))
