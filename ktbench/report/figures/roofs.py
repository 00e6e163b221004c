"""The roofs that a panel of curves runs against: medians of the samples next to its trials, and their range."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from statistics import median
from typing import Any

from matplotlib.artist import Artist
from matplotlib.lines import Line2D

from ktbench.report.figures.frame import Frame
from ktbench.report.figures.label_placement import XY
from ktbench.report.figures.sheet import scaled
from ktbench.results.quantities.text import number
from ktbench.results.row import Row, roof_rows
from ktbench.results.usage import Spread, peak_spreads, read_spread
from ktbench.spec.record import Provenance, Record

_ROOF = "#4d4d4d"
BAND = "#e4e4e4"
_ENDLESS = Spread(low=inf, mid=inf, high=inf)
_STEPS = 100  # a band bends where slope and peak meet
DASHED: dict[str, Any] = {"color": _ROOF, "linewidth": 0.8, "linestyle": (0, (4, 2.5))}


@dataclass(frozen=True, kw_only=True, slots=True)
class Rooflines:
    """`read` in bytes/s, `peaks` in operations/s by instruction set and dtype.

    `intensity` is the operations that a token adds for each byte of an expert's weights, None where no row says its
    work.
    """

    read: Spread | None
    peaks: dict[tuple[str, str], Spread]
    intensity: float | None

    @property
    def slope(self) -> Spread | None:
        """Operations/s that the read bandwidth allows at one token per expert."""
        if self.read is None or self.intensity is None:
            return None
        return scaled(self.read, self.intensity)


def rooflines(panel: Sequence[Row], part: Sequence[Row]) -> Rooflines:
    """Roofs of rows whose weights have one precision, as sampled in all trials of their part."""
    drawn = roof_rows(part)
    peaks = peak_spreads(_records(drawn))
    own = peak_spreads(_records([row for row in panel if row in drawn]))
    known = [(row.work, row.spec.tokens_per_expert) for row in panel]
    intensities = [work.flops / work.weight_bytes / tokens for work, tokens in known if work]
    return Rooflines(
        read=read_spread(_records(drawn)),
        peaks={key: peaks[key] for key in own},
        intensity=median(intensities) if intensities else None,
    )


def draw_rooflines(frame: Frame, roofs: Rooflines) -> list[tuple[str, XY, XY]]:
    """Draw roofs over tokens per expert, in 10¹² operations/s; returns their names and the lines to write them along.

    Each peak begins where the read roof reaches it; one that lies beyond the frame is no roof in it and not drawn. Its
    name has the dtype where peaks differ in it: elsewhere the unit says it.
    """
    left, right = frame.x
    slope = scaled(roofs.slope, 1e-12) if roofs.slope else None
    peaks = {key: scaled(peak, 1e-12) for key, peak in roofs.peaks.items()}
    names = []
    for peak in peaks.values() or ([_ENDLESS] if slope else []):
        _band(frame, slope or _ENDLESS, peak)
    if slope and roofs.read:
        end = min([right, max(peak.mid for peak in peaks.values()) / slope.mid] if peaks else [right])
        start = max(left, frame.y[0] / slope.mid)
        names.append(
            (f"read {number(roofs.read.mid / 1e9, 2)} GB/s", (start, slope.mid * start), (end, slope.mid * end))
        )
    are_mixed = len({dtype for _, dtype in peaks}) > 1
    for (isa, dtype), peak in peaks.items():
        name = f"{isa} {dtype}" if are_mixed else isa
        start = max(left, peak.mid / slope.mid) if slope else left
        if start < right:
            names.append((f"{name} {number(peak.mid, 2)}", (start, peak.mid), (right, peak.mid)))
    for _, *line in names:
        _dash(frame, line)
    return names


def name_roof(frame: Frame, name: str, start: XY, end: XY) -> None:
    """Write the name of a drawn roof along it; of a peak also before its left end, where nothing is above the slope."""
    before = ((frame.x[0], start[1]), start)
    frame.label(name, start, end, also=(before,) if start[1] == end[1] and frame.x[0] < start[0] else ())


def draw_read_time(frame: Frame, read: Spread, weights: Sequence[tuple[float, int]]) -> tuple[str, XY, XY]:
    """Draw the ms that reading the weights takes, given their bytes at each number of tokens per expert."""
    lows, mids, highs = ([total / read_s * 1e3 for _, total in weights] for read_s in (read.high, read.mid, read.low))
    xs = [x for x, _ in weights]
    frame.axes.fill_between(xs, lows, highs, color=BAND, linewidth=0, zorder=0)
    _dash(frame, list(zip(xs, mids, strict=True)))
    return f"read {number(read.mid / 1e9, 2)} GB/s", (xs[0], mids[0]), (xs[-1], mids[-1])


def roof_handle(provenance: Provenance) -> Artist:
    """Legend entry of roofs."""
    described = "described" if provenance == "simulated" else provenance
    return Line2D([], [], label=f"roof, {described}", **DASHED)


def _band(frame: Frame, slope: Spread, peak: Spread) -> None:
    """Between the roofline of the least and that of the most that was sampled."""
    left, right = frame.x
    xs = [left * (right / left) ** (n / _STEPS) for n in range(_STEPS + 1)]
    lows, highs = [min(slope.low * x, peak.low) for x in xs], [min(slope.high * x, peak.high) for x in xs]
    frame.axes.fill_between(xs, lows, highs, color=BAND, linewidth=0, zorder=0)


def _dash(frame: Frame, line: Sequence[XY]) -> None:
    frame.axes.plot([x for x, _ in line], [y for _, y in line], zorder=1, **DASHED)
    frame.take_line(line)


def _records(rows: Sequence[Row]) -> list[Record]:
    return [record for row in rows for record in row.records]
