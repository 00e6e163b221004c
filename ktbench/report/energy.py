"""What a token cost in joules and how many watts were drawn, by the meters that were read around the timed steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ktbench.core.conduct import WHOLE_PLATFORM
from ktbench.core.record import Record
from ktbench.report.exact import summary
from ktbench.stats.intervals import Interval

_NOT_READ = "nobody read a meter around these steps"


@dataclass(frozen=True, kw_only=True, slots=True)
class EnergyUse:
    """Joules a token and watts as intervals over rounds, and the `meters` that were added up.

    They are of whole chips: idle power and other programs' are not subtracted.
    """

    joules_per_token: Interval
    watts: Interval
    meters: tuple[str, ...]


def energy_use(records: Sequence[Record], tokens_per_step: int) -> EnergyUse | None:
    """Each round with its own joules; None where no record has any."""
    read = [record for record in records if record.samples_s]
    found = [(r.conduct.energy, len(r.samples_s)) for r in read if r.conduct and r.conduct.energy]
    if not found:
        return None
    meters = dict.fromkeys(name for energy, _ in found for name in energy.joules)
    return EnergyUse(
        joules_per_token=summary([energy.total_j / (steps * tokens_per_step) for energy, steps in found], records),
        watts=summary([energy.total_j / energy.seconds for energy, _ in found], records),
        meters=tuple(name for name in meters if name != WHOLE_PLATFORM) or (WHOLE_PLATFORM,),
    )


def unmetered_reason(records: Sequence[Record]) -> str:
    """Why there is no energy, or not all of it; empty where all meters were read."""
    conducts = [record.conduct for record in records if record.samples_s]
    why = [_NOT_READ if conduct is None else conduct.missing.get("energy", "") for conduct in conducts]
    return "; ".join(dict.fromkeys(filter(None, why)))
