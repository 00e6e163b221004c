"""Reads every gauge in turn, round after round, and puts the machine into words and numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from statistics import median
from time import monotonic

from ktbench.host.describe import Constant, MachineDescription
from ktbench.host.gauges import Gauge, Instruments
from ktbench.spec.core_layout import CoreLayout, core_layout_during
from ktbench.spec.record import Environment


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """What a gauge said, in its unit, and where the cores were right before and right after; None with one core."""

    value: float
    placement: CoreLayout | None


Readings = dict[str, Reading]


def read_rounds(
    instruments: Instruments, rounds: int, seconds: float, clock: Callable[[], float] = monotonic
) -> Iterator[Readings]:
    """Readings by gauge key, one round at a time, for at least so many rounds and so many seconds.

    Odd rounds walk back, so that drift falls on all alike.
    """
    began, number = clock(), 0
    while number < rounds or clock() - began < seconds:
        order = instruments.gauges if number % 2 == 0 else instruments.gauges[::-1]
        yield _read_round(order, instruments.hop)
        number += 1


def describe(
    instruments: Instruments, rounds: Sequence[Readings], machine: Environment, day: date
) -> MachineDescription:
    """The description that rounds of readings amount to: values hold where the cores were most often."""
    usual = _usual_placement(rounds)
    return MachineDescription(
        name=machine.facts["cpu_model"] or "unnamed cpu",
        env_id=machine.env_id,
        created=day.isoformat(),
        placement=usual,
        constants={gauge.key: _constant(gauge, rounds, usual, day) for gauge in instruments.gauges}
        | instruments.missing,
        facts=machine.facts,
    )


def _read_round(order: Sequence[Gauge], hop: Gauge | None) -> Readings:
    """The time from core to core is taken between gauges too: each reading lies between two of them."""
    readings = {}
    before = None if hop is None else hop.read()
    for gauge in order:
        value = gauge.read()
        after = None if hop is None else hop.read()
        readings[gauge.key] = Reading(value=value, placement=core_layout_during([before, after]))
        before = after
    return readings


def _usual_placement(rounds: Sequence[Readings]) -> CoreLayout | None:
    """The commonest placement; "moved" only where there is no other."""
    seen = Counter(reading.placement for readings in rounds for reading in readings.values())
    steady = Counter({place: times for place, times in seen.items() if place != "moved"}) or seen
    return steady.most_common(1)[0][0]


def _constant(gauge: Gauge, rounds: Sequence[Readings], usual: CoreLayout | None, day: date) -> Constant:
    readings = [readings[gauge.key] for readings in rounds]
    typical = [reading.value for reading in readings if reading.placement == usual]
    where = f" while the cores were {usual}" if usual else ""
    source = f"measured by probe on {day.isoformat()}, median of {len(typical)} interleaved repeats{where}"
    return Constant(
        title=gauge.title,
        unit=gauge.unit,
        value=median(typical) if typical else None,
        source=source,
        samples=tuple(reading.value for reading in readings),
        placements=tuple(reading.placement for reading in readings if reading.placement),
        why="" if typical else f"never measured{where}, as the cores were most often",
    )
