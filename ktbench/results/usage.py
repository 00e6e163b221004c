"""How much of the machine a cell used: its share of the roofs, the time of its roles, energy, and peak memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Literal

from ktbench.results.intervals import Interval, summary
from ktbench.results.settings import by_key
from ktbench.spec.core_layout import core_layout_of
from ktbench.spec.record import Record, RoleTimes, RoofSample, StepParts, Work
from ktbench.spec.run_spec import MeasureSpec, RunSpec
from ktbench.spec.system_metrics import GPU_METERED_S, READ_BUFFER_BYTES, Energy, PeakMemory

Limit = Literal["read", "arithmetic"]

# Roofs before and after a trial whose read bandwidths differ by more do not hold for the time between them.
MAX_DISAGREEMENT = 1.2


@dataclass(frozen=True, kw_only=True, slots=True)
class RoofShare:
    """Share of the nearer roof reached, as an interval over the same rounds as the time, and which roof that was.

    `left_out` counts the trials whose own roofs were not used because the machine changed during them; where it did so
    in all of them `steady` is False and they are used all the same.
    """

    share: Interval
    limit: Limit
    peak_isa: str
    peak_dtype: str
    left_out: int = 0
    steady: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Spread:
    """Median of samples, the least and the most of them."""

    low: float
    mid: float
    high: float


def spread(values: Sequence[float]) -> Spread:
    """Spread of at least one value."""
    return Spread(low=min(values), mid=median(values), high=max(values))


def roof_share(records: Sequence[Record], measure: MeasureSpec) -> RoofShare | None:
    """Least time over taken time, a round at a time, each round against the roofs sampled next to it.

    Least time is the larger of bytes over read bandwidth and operations over arithmetic peak (Williams, Waterman and
    Patterson, Roofline, CACM 52(4), 2009). Without a known peak the read roof alone counts. A trial during
    which the cores were moved, or whose two read roofs differ by more than 20 %, counts with the median least time of
    the others, where there are any: a share of other trials than the time would contradict it. None where no record has
    both work and roofs.
    """
    usable = [(record, record.work) for record in records if record.work and record.roofs and record.samples_s]
    if not usable:
        return None
    steady = [(record, work) for record, work in usable if _is_steady(record)]
    counted = steady or usable
    least_s = {record.round: _least_s(work, record.roofs) for record, work in counted}
    usual_s = median(map(max, least_s.values()))
    shares = {
        record.round: (max(least_s[record.round]) if record.round in least_s else usual_s) / median(record.samples_s)
        for record, _ in usable
    }
    roof = counted[-1][0].roofs[0]
    return RoofShare(
        share=summary(shares, records, measure),
        limit="arithmetic" if median(computing - reading for reading, computing in least_s.values()) > 0 else "read",
        peak_isa=roof.peak_isa,
        peak_dtype=roof.peak_dtype,
        left_out=len(usable) - len(counted),
        steady=bool(steady),
    )


def read_spread(records: Iterable[Record]) -> Spread | None:
    """Read bandwidth in bytes/s over all roofs sampled next to trials; None without any."""
    found = [roof.read_bytes_per_s for record in records for roof in record.roofs]
    return spread(found) if found else None


def peak_spreads(records: Iterable[Record]) -> dict[tuple[str, str], Spread]:
    """Arithmetic peaks in operations/s by instruction set and dtype, in alphabetical order."""
    roofs = (roof for record in records for roof in record.roofs)
    found = by_key(((roof.peak_isa, roof.peak_dtype), roof.peak_flops) for roof in roofs if roof.peak_flops is not None)
    return {key: spread(found[key]) for key in sorted(found)}


def _is_steady(record: Record) -> bool:
    reads = [roof.read_bytes_per_s for roof in record.roofs]
    return core_layout_of(record) != "moved" and max(reads) <= MAX_DISAGREEMENT * min(reads)


def _least_s(work: Work, roofs: Sequence[RoofSample]) -> tuple[float, float]:
    """Seconds that reading the weights and seconds that the arithmetic must take."""
    peaks = [roof.peak_flops for roof in roofs if roof.peak_flops is not None]
    reading_s = work.weight_bytes / fmean(roof.read_bytes_per_s for roof in roofs)
    return reading_s, work.flops / fmean(peaks) if peaks else 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class RoleShares:
    """Shares of the timed steps, as intervals over rounds, in which each role worked, and in which both did.

    Of a CUDA device the host's alone.
    """

    host_busy: Interval
    device_busy: Interval | None
    overlap: Interval | None


@dataclass(frozen=True, kw_only=True, slots=True)
class PartTimes:
    """Seconds of each part of a training step, as intervals over rounds."""

    forward_s: Interval
    backward_s: Interval
    optimiser_s: Interval


def part_times(records: Sequence[Record], measure: MeasureSpec) -> PartTimes | None:
    """The mean over the steps of each round; None where nothing was trained."""
    timed = [record for record in records if record.samples_s]
    found = {record.round: (record.parts, len(record.samples_s)) for record in timed if record.parts}
    if not found:
        return None

    def seconds(part: Callable[[StepParts], float]) -> Interval:
        return summary({n: part(parts) / steps for n, (parts, steps) in found.items()}, records, measure)

    return PartTimes(
        forward_s=seconds(lambda parts: parts.forward_s),
        backward_s=seconds(lambda parts: parts.backward_s),
        optimiser_s=seconds(lambda parts: parts.optimiser_s),
    )


def role_shares(records: Sequence[Record], measure: MeasureSpec) -> RoleShares | None:
    """Each round with its own share; None where no record has the times of its roles."""
    found = {record.round: record.roles for record in records if record.roles and record.roles.total_s > 0}
    if not found:
        return None

    def share(seconds: Callable[[RoleTimes], float | None]) -> Interval | None:
        known = {n: of / roles.total_s for n, roles in found.items() if (of := seconds(roles)) is not None}
        return summary(known, records, measure) if known else None

    return RoleShares(
        host_busy=summary({n: roles.host_busy_s / roles.total_s for n, roles in found.items()}, records, measure),
        device_busy=share(lambda roles: roles.device_busy_s),
        overlap=share(lambda roles: roles.overlap_s),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class EnergyUse:
    """Joules a token and watts as intervals over rounds, and the `meters` that were added up, in each round the same.

    They are of whole chips: idle power and other programs' are not subtracted.
    """

    joules_per_token: Interval
    watts: Interval
    meters: tuple[str, ...]


def energy_use(records: Sequence[Record], spec: RunSpec) -> EnergyUse | None:
    """Each round with its own joules; None where no record has any, or not all have those of the same meters."""
    found, sums = _metered(records), _sums(records)
    if len(sums) != 1:
        return None
    joules = {record.round: energy.total_j / _tokens(record, spec) for record, energy in found}
    watts = {record.round: energy.total_j / energy.seconds for record, energy in found}
    return EnergyUse(
        joules_per_token=summary(joules, records, spec.measure),
        watts=summary(watts, records, spec.measure),
        meters=sums[0],
    )


def unmetered_reason(records: Sequence[Record]) -> str:
    """Why there is no energy, or not all of it; empty where all meters were read."""
    sums = [" + ".join(meters) for meters in _sums(records)]
    brief = any(not energy.is_resolved for _, energy in _energies(records))
    short = [f"a GPU's counter needs {GPU_METERED_S:g} s of steps in a trial: raise workload.steps"] if brief else []
    mixed = [f"rounds were read by different meters: {', '.join(sums)}"] if len(sums) > 1 else []
    return "; ".join([*short, *mixed, *_reasons(records, "energy", "no energy meter was read during these steps")])


def _reasons(records: Sequence[Record], name: str, not_read: str) -> Iterator[str]:
    """Why timed rounds lack the metric `name`, each reason once."""
    metrics = [record.conduct for record in records if record.samples_s]
    why = (not_read if one is None else one.missing.get(name, "") for one in metrics)
    return filter(None, dict.fromkeys(why))


def _tokens(record: Record, spec: RunSpec) -> int:
    """Tokens of the timed steps; where requests were served, those of their answers."""
    if record.replay is not None:
        return record.replay.output_tokens
    return len(record.samples_s) * spec.workload.tokens_per_step


def _metered(records: Sequence[Record]) -> list[tuple[Record, Energy]]:
    """The energy of each round that was metered for long enough."""
    return [(record, energy) for record, energy in _energies(records) if energy.is_resolved]


def _energies(records: Sequence[Record]) -> Iterator[tuple[Record, Energy]]:
    watched = ((record, record.conduct.energy) for record in records if record.samples_s and record.conduct)
    return ((record, energy) for record, energy in watched if energy)


def _sums(records: Sequence[Record]) -> list[tuple[str, ...]]:
    """The sets of meters that were added up, whatever the order in which they were read."""
    return list({frozenset(energy.counted): energy.counted for _, energy in _metered(records)}.values())


# Peaks that differ by less are shown as one number.
_ALIKE = 1.1


def peak_memory(records: Sequence[Record]) -> PeakMemory | None:
    """The most of all rounds; None where no record has a peak."""
    return most([record.conduct.memory for record in records if record.conduct and record.conduct.memory])


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


def unseen_reason(records: Sequence[Record]) -> str:
    """Why there is no peak; empty where there is one."""
    return "; ".join(_reasons(records, "memory", "memory was not sampled during these trials"))


def are_alike(peaks: Sequence[PeakMemory]) -> bool:
    """Whether one number stands for all of them, the harness's own buffer left out."""
    held = [max(0, peak.process_bytes - READ_BUFFER_BYTES) for peak in peaks]
    return max(held) <= _ALIKE * min(held)


def _most(held: Iterable[dict[str, int]]) -> dict[str, int]:
    return {name: max(sizes) for name, sizes in by_key(item for one in held for item in one.items()).items()}
