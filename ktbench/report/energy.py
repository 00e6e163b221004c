"""What a token cost in joules and how many watts were drawn, by the meters that were read around the timed steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ktbench.results.intervals import Interval, summary
from ktbench.spec.conduct import Energy
from ktbench.spec.record import Record

_NOT_READ = "nobody read a meter around these steps"


@dataclass(frozen=True, kw_only=True, slots=True)
class EnergyUse:
    """Joules a token and watts as intervals over rounds, and the `meters` that were added up, in each round the same.

    They are of whole chips: idle power and other programs' are not subtracted.
    """

    joules_per_token: Interval
    watts: Interval
    meters: tuple[str, ...]


def energy_use(records: Sequence[Record], tokens_per_step: int) -> EnergyUse | None:
    """Each round with its own joules; None where no record has any, or not all have those of the same meters."""
    found, sums = _metered(records), _sums(records)
    if len(sums) != 1:
        return None
    return EnergyUse(
        joules_per_token=summary([energy.total_j / (steps * tokens_per_step) for energy, steps in found], records),
        watts=summary([energy.total_j / energy.seconds for energy, _ in found], records),
        meters=sums[0],
    )


def unmetered_reason(records: Sequence[Record]) -> str:
    """Why there is no energy, or not all of it; empty where all meters were read."""
    conducts = [record.conduct for record in records if record.samples_s]
    why = [_NOT_READ if conduct is None else conduct.missing.get("energy", "") for conduct in conducts]
    sums = [" + ".join(meters) for meters in _sums(records)]
    mixed = [f"rounds were read by different meters: {', '.join(sums)}"] if len(sums) > 1 else []
    return "; ".join(dict.fromkeys(filter(None, mixed + why)))


def _metered(records: Sequence[Record]) -> list[tuple[Energy, int]]:
    """The energy of each round that has any, with its steps."""
    return [(r.conduct.energy, len(r.samples_s)) for r in records if r.samples_s and r.conduct and r.conduct.energy]


def _sums(records: Sequence[Record]) -> list[tuple[str, ...]]:
    """The sets of meters that were added up, whatever the order in which they were read."""
    return list({frozenset(energy.counted): energy.counted for energy, _ in _metered(records)}.values())
