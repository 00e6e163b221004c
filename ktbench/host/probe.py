"""Reads every gauge in turn, round after round, and puts the machine into words and numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date
from statistics import median

from ktbench.core.record import Environment
from ktbench.host.describe import Constant, MachineDescription
from ktbench.host.gauges import Gauge, Instruments

# Per hop, one way: about 30 ns inside one last-level cache and 155 ns between two on Zen 4, 65 ns on Granite Rapids.
_NEAR_NS = 80.0

Readings = dict[str, float]


def read_rounds(gauges: Sequence[Gauge], rounds: int) -> Iterator[Readings]:
    """Readings by gauge key, one round at a time; odd rounds walk back, so that drift falls on all alike."""
    for number in range(rounds):
        order = gauges if number % 2 == 0 else gauges[::-1]
        yield {gauge.key: gauge.read() for gauge in order}


def describe(
    instruments: Instruments, rounds: Sequence[Readings], machine: Environment, day: date
) -> MachineDescription:
    """The description that rounds of readings amount to."""
    measured = {gauge.key: _constant(gauge, rounds, day) for gauge in instruments.gauges}
    hop = measured.get("ping_pong")
    return MachineDescription(
        name=machine.facts["cpu_model"] or "unnamed cpu",
        env_id=machine.env_id,
        created=day.isoformat(),
        placement=None if hop is None or hop.value is None else placement(hop.value),
        constants=measured | instruments.missing,
        facts=machine.facts,
    )


def placement(ping_pong_ns: float) -> str:
    """Where the first two cores sit: `near` (a cache line passes quickly) or `far`."""
    return "near" if ping_pong_ns < _NEAR_NS else "far"


def _constant(gauge: Gauge, rounds: Sequence[Readings], day: date) -> Constant:
    samples = tuple(readings[gauge.key] for readings in rounds)
    source = f"measured by probe on {day.isoformat()}, median of {len(samples)} interleaved repeats"
    return Constant(title=gauge.title, unit=gauge.unit, value=median(samples), source=source, samples=samples)
