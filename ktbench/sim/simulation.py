"""What a simulation says of a cell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ktbench.spec.record import RoofSample, Work
from ktbench.spec.timeline import Timeline


@dataclass(frozen=True, kw_only=True, slots=True)
class Simulation:
    """One step of a cell on a machine of paper.

    `timeline` holds its spans, `work` what the host had to do in it, `counters` what the engine's own counters would
    have seen, `roof` the limits of the machine. `shares` say for each resource which share of the step it worked,
    `bottleneck` names the one that the step would gain most from, `notes` what was assumed or chosen on the way.
    """

    step_s: float
    timeline: Timeline
    work: Work
    counters: Mapping[str, int]
    roof: RoofSample
    shares: Mapping[str, float]
    bottleneck: str
    notes: tuple[str, ...] = ()
