"""How near a cell came to what the machine could do at that moment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Literal

from ktbench.core.record import Record
from ktbench.stats.intervals import Interval, median_interval

Limit = Literal["read", "arithmetic"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RoofShare:
    """Share of the nearer roof reached, as an interval over rounds, and which roof that was."""

    share: Interval
    limit: Limit
    peak_isa: str


def roof_share(records: Sequence[Record]) -> RoofShare | None:
    """Least time over taken time, a round at a time, each round against the roofs sampled next to it.

    Least time is the larger of bytes over read bandwidth and operations over arithmetic peak (Williams, Waterman and
    Patterson, Roofline, CACM 52(4), 2009). Without a known peak the read roof alone counts.
    None where no record has both work and roofs.
    """
    shares, excesses, isas = [], [], []
    for record in records:
        if record.work is None or not record.roofs or not record.samples_s:
            continue
        peaks = [roof.peak_flops for roof in record.roofs if roof.peak_flops is not None]
        reading_s = record.work.weight_bytes / mean(roof.read_bytes_per_s for roof in record.roofs)
        computing_s = record.work.flops / mean(peaks) if peaks else 0.0
        shares.append(max(reading_s, computing_s) / median(record.samples_s))
        excesses.append(computing_s - reading_s)
        isas.append(record.roofs[0].peak_isa)
    if not shares:
        return None
    limit: Limit = "arithmetic" if median(excesses) > 0 else "read"
    return RoofShare(share=median_interval(shares), limit=limit, peak_isa=isas[-1])
