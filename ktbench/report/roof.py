"""How near a cell came to what the machine could do at that moment."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Literal

from ktbench.results.intervals import Interval, summary
from ktbench.spec.placement import placement_of
from ktbench.spec.record import Record, RoofSample, Work

Limit = Literal["read", "arithmetic"]

# Roofs before and after a turn whose read bandwidths differ by more say nothing about the time between them.
MAX_DISAGREEMENT = 1.2


@dataclass(frozen=True, kw_only=True, slots=True)
class RoofShare:
    """Share of the nearer roof reached, as an interval over rounds, and which roof that was.

    `left_out` counts the turns that were not used because the machine changed during them; where it did so in all of
    them `steady` is False and they are used all the same.
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


def roof_share(records: Sequence[Record]) -> RoofShare | None:
    """Least time over taken time, a round at a time, each round against the roofs sampled next to it.

    Least time is the larger of bytes over read bandwidth and operations over arithmetic peak (Williams, Waterman and
    Patterson, Roofline, CACM 52(4), 2009). Without a known peak the read roof alone counts. Turns during which the
    cores were moved, or whose two read roofs differ by more than 20 %, are left out where others remain.
    None where no record has both work and roofs.
    """
    usable = [(record, record.work) for record in records if record.work and record.roofs and record.samples_s]
    if not usable:
        return None
    steady = [(record, work) for record, work in usable if _is_steady(record.roofs)]
    counted = steady or usable
    least_s = [_least_s(work, record.roofs) for record, work in counted]
    shares = [max(least) / median(record.samples_s) for least, (record, _) in zip(least_s, counted, strict=True)]
    roof = counted[-1][0].roofs[0]
    return RoofShare(
        share=summary(shares, records),
        limit="arithmetic" if median(computing - reading for reading, computing in least_s) > 0 else "read",
        peak_isa=roof.peak_isa,
        peak_dtype=roof.peak_dtype,
        left_out=len(usable) - len(counted),
        steady=bool(steady),
    )


def read_spread(records: Iterable[Record]) -> Spread | None:
    """Read bandwidth in bytes/s over all roofs sampled next to turns; None without any."""
    found = [roof.read_bytes_per_s for record in records for roof in record.roofs]
    return spread(found) if found else None


def peak_spreads(records: Iterable[Record]) -> dict[tuple[str, str], Spread]:
    """Arithmetic peaks in operations/s by instruction set and dtype, in alphabetical order."""
    found: dict[tuple[str, str], list[float]] = {}
    for roof in (roof for record in records for roof in record.roofs):
        if roof.peak_flops is not None:
            found.setdefault((roof.peak_isa, roof.peak_dtype), []).append(roof.peak_flops)
    return {key: spread(found[key]) for key in sorted(found)}


def _is_steady(roofs: Sequence[RoofSample]) -> bool:
    reads = [roof.read_bytes_per_s for roof in roofs]
    return placement_of(roofs) != "moved" and max(reads) <= MAX_DISAGREEMENT * min(reads)


def _least_s(work: Work, roofs: Sequence[RoofSample]) -> tuple[float, float]:
    """Seconds that reading the weights and seconds that the arithmetic must take."""
    peaks = [roof.peak_flops for roof in roofs if roof.peak_flops is not None]
    reading_s = work.weight_bytes / fmean(roof.read_bytes_per_s for roof in roofs)
    return reading_s, work.flops / fmean(peaks) if peaks else 0.0
