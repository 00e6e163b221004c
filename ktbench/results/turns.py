"""Turns of one cell by round, and rounds in which two cells are comparable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import TypeAlias

from ktbench.results.speedups import paired_ratios
from ktbench.spec.core_layout import CoreLayout, core_layout_of
from ktbench.spec.record import Record


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """The median step of one turn in seconds, on which machine it ran, and where on it the cores were."""

    step_s: float
    machine: str
    placement: CoreLayout | None


Turns: TypeAlias = Mapping[int, Turn]


def turn_of(record: Record) -> Turn:
    """The turn of a record that has samples."""
    return Turn(step_s=median(record.samples_s), machine=record.env_id, placement=core_layout_of(record.roofs))


def comparable(one: Turns, other: Turns) -> tuple[dict[int, float], dict[int, float]]:
    """Seconds of both in the rounds in which one machine had their cores in the same place, where they stayed."""
    rounds = [n for n in one.keys() & other.keys() if _are_comparable(one[n], other[n])]
    return {n: one[n].step_s for n in rounds}, {n: other[n].step_s for n in rounds}


def _are_comparable(one: Turn, other: Turn) -> bool:
    return one.placement == other.placement != "moved" and one.machine == other.machine


def goal_values(mine: Turns, baseline: Turns | None, control: Turns | None, *, is_baseline: bool) -> Values:
    """By round, the values that the precision goal of a cell is about.

    Speed-ups over the baseline, which a drift of the whole machine does not touch; for the baseline itself those of its
    control; seconds a step where there is nothing to compare with. None in a round in which both were measured, but
    with the cores in different places.
    """
    shown = control if is_baseline else mine
    both = baseline.keys() & shown.keys() if baseline and shown else set()
    if not (baseline and shown and both):
        return {number: turn.step_s for number, turn in mine.items()}
    ratios = paired_ratios(*comparable(baseline, shown))
    return {number: ratios.get(number) for number in sorted(both)}


Values: TypeAlias = dict[int, float | None]
