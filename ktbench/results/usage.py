"""What of the machine was sampled beside the trials of cells: roofs, energy, memory, counters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from ktbench.results.quantities.trials import energies_of, metered
from ktbench.results.settings import group_by
from ktbench.spec.record import Record
from ktbench.spec.system_metrics import GPU_METERED_S, READ_BUFFER_BYTES, PeakMemory

Limit = Literal["read", "arithmetic"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Spread:
    """Median of samples, the least and the most of them."""

    low: float
    mid: float
    high: float


def spread(values: Sequence[float]) -> Spread:
    """Spread of at least one value."""
    return Spread(low=min(values), mid=median(values), high=max(values))


def read_spread(records: Iterable[Record]) -> Spread | None:
    """Read bandwidth in bytes/s over all roofs sampled next to trials; None without any."""
    found = [roof.read_bytes_per_s for record in records for roof in record.roofs]
    return spread(found) if found else None


def peak_spreads(records: Iterable[Record]) -> dict[tuple[str, str], Spread]:
    """Arithmetic peaks in operations/s by instruction set and dtype, in alphabetical order."""
    roofs = (roof for record in records for roof in record.roofs)
    found = group_by(
        ((roof.peak_isa, roof.peak_dtype), roof.peak_flops) for roof in roofs if roof.peak_flops is not None
    )
    return {key: spread(found[key]) for key in sorted(found)}


def unmetered_reason(records: Sequence[Record]) -> str:
    """Why there is no energy, or not all of it; empty where all meters were read."""
    sums = {frozenset(energy.counted): " + ".join(energy.counted) for _, energy in metered(records)}
    brief = any(not energy.is_resolved for _, energy in energies_of(records))
    short = [f"a GPU's counter needs {GPU_METERED_S:g} s of steps in a trial: raise workload.steps"] if brief else []
    mixed = [f"rounds were read by different meters: {', '.join(sums.values())}"] if len(sums) > 1 else []
    return "; ".join([*short, *mixed, *_reasons(records, "energy", "no energy meter was read during these steps")])


def unseen_reason(records: Sequence[Record]) -> str:
    """Why there is no peak of memory; empty where there is one."""
    return "; ".join(_reasons(records, "memory", "memory was not sampled during these trials"))


def _reasons(records: Sequence[Record], name: str, not_read: str) -> Iterator[str]:
    """Why timed rounds lack the metric `name`, each reason once."""
    metrics = [record.system_metrics for record in records if record.samples_s]
    why = (not_read if one is None else one.missing.get(name, "") for one in metrics)
    return filter(None, dict.fromkeys(why))


# Peaks that differ by less are shown as one number.
_ALIKE = 1.1


def most(peaks: Sequence[PeakMemory]) -> PeakMemory | None:
    """The most that any of these held of each memory; None without any."""
    if not peaks:
        return None
    return PeakMemory(
        process_bytes=max(peak.process_bytes for peak in peaks),
        of_turn=all(peak.of_turn for peak in peaks),
        node_bytes=_most([peak.node_bytes for peak in peaks]),
        device_bytes=_most([peak.device_bytes for peak in peaks]),
    )


def are_alike(peaks: Sequence[PeakMemory]) -> bool:
    """Whether one number stands for all of them, the harness's own buffer left out."""
    held = [max(0, peak.process_bytes - READ_BUFFER_BYTES) for peak in peaks]
    return max(held) <= _ALIKE * min(held)


def _most(held: Iterable[dict[str, int]]) -> dict[str, int]:
    return {name: max(sizes) for name, sizes in group_by(item for one in held for item in one.items()).items()}


NONE_REQUESTED = "none requested, none seen"


def evidence_of(records: Sequence[Record]) -> str | None:
    """Counters of the requested features, per step or block: `avx512_calls 32/step`. None where nothing was counted.

    Those of a simulation are `modelled: ...`.
    """
    counted = [(one, one.seen, len(record.samples_s)) for record in records for one in record.evidence]
    if all(seen is None for _, seen, _ in counted):
        return None
    moved = group_by((one.counter, seen / n) for one, seen, n in counted if one.wanted and seen is not None and n)
    unit = "step" if records[0].replay is None else "block"
    counters = ", ".join(f"{name} {_count(median(each))}/{unit}" for name, each in moved.items()) or NONE_REQUESTED
    return f"modelled: {counters}" if records[0].provenance == "simulated" else counters


def _count(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:,.1f}"
