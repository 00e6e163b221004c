"""Labels inside plots, where they cover least of what is drawn there, and the roofs that most of them name.

Places are in inches from the lower left corner. Roofs are medians of the samples next to trials, and their range.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from math import atan2, ceil, cos, degrees, dist, inf, sin, sqrt
from statistics import median
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke
from numpy.typing import ArrayLike, NDArray

from ktbench.report.figures.sheet import Sheet
from ktbench.report.figures.style import INK, line_in, width_in
from ktbench.results.quantities.text import number
from ktbench.results.row import Row, roof_rows
from ktbench.results.usage import Spread, peak_spreads, read_spread
from ktbench.spec.record import Provenance, Record

XY = tuple[float, float]
Boxes = NDArray[np.float64]  # rectangles, in a line for each: left, bottom, right, top

_STEP_IN = 0.02
_PAD_IN, _EDGE_IN, _ROUNDING_IN = 0.04, 0.02, 1e-6
_CLEAR_IN, _APART_IN = 0.05, 0.02  # of labels from their marker and from each other
_RING = 1.5  # between two rings of spots, in those
_TRIES = 15
# Square inches: less than the first is not seen; a spot further off must save a crossing with a curve.
_NOTHING_IN2, _FAR_IN2 = 1e-3, 3e-3


@dataclass(frozen=True, kw_only=True, slots=True)
class Spot:
    """Where text of a size can stand: its lower left corner, its angle in radians, the boxes that it covers.

    `far` from its line a reader has to look for it.
    """

    corner: XY
    angle: float
    boxes: Boxes
    far: bool

    def cost(self, taken: Boxes) -> int:
        """How bad it is, in steps that an eye would see."""
        return round((overlap(self.boxes, taken) + self.far * _FAR_IN2) / _NOTHING_IN2)

    def is_within(self, width: float, height: float) -> bool:
        """Whether a plot of this size holds it, clear of its axes."""
        limits = (width + _ROUNDING_IN, height + _ROUNDING_IN)
        return bool((self.boxes[:, :2] >= _EDGE_IN).all() and (self.boxes[:, 2:] <= limits).all())


def overlap(some: Boxes, others: Boxes) -> float:
    """Area in common of boxes with others, added up."""
    low = np.maximum(some[:, None, :2], others[None, :, :2])
    high = np.minimum(some[:, None, 2:], others[None, :, 2:])
    return float(np.prod(np.clip(high - low, 0.0, None), axis=2).sum())


def around(points: ArrayLike, reach: float) -> Boxes:
    """The squares whose sides are `reach` away from points."""
    centers = np.reshape(np.asarray(points, dtype=float), (-1, 2))
    return np.hstack([centers - reach, centers + reach])


def along(points: Sequence[XY], reach: float) -> Boxes:
    """Squares that cover a line through points."""
    return around([point for start, end in pairwise(points) for point in _steps(start, end, _STEP_IN)], reach)


def spots_beside(start: XY, end: XY, length: float, height: float) -> Iterator[Spot]:
    """Places for text along a straight line: above it, then below it, then further off.

    Each time from the right end of a level line, which is where curves are far from it, from the left end of a slope.
    """
    (x0, y0), (x1, y1) = start, end
    angle = atan2(y1 - y0, x1 - x0)
    across, up = cos(angle), sin(angle)
    near, far = (_PAD_IN, -_PAD_IN - height), (_PAD_IN + height, -_PAD_IN - 2 * height)
    for side in (*near, *far):
        for n in range(_TRIES):
            share = n / (_TRIES - 1) if up else 1 - n / (_TRIES - 1)
            x = x0 + (x1 - x0 - length * across) * share - side * up
            y = y0 + (y1 - y0 - length * up) * share + side * across
            yield Spot(corner=(x, y), angle=angle, boxes=_slanted(x, y, length, height, angle), far=side in far)


def spots_around(center: XY, length: float, height: float, rings: int = 2) -> Iterator[Spot]:
    """Places for a level line of text around a marker: right above first, then further off in so many rings."""
    reaches = (_CLEAR_IN * (1 + _RING * ring) for ring in range(rings))
    for reach, (right, up) in product(reaches, product((1, -1, 0), (1, -1, 0))):
        x = center[0] + (reach if right > 0 else -reach - length if right < 0 else -length / 2)
        y = center[1] + (reach if up > 0 else -reach - height if up < 0 else -height / 2)
        boxes = np.array([[x - _APART_IN, y, x + length + _APART_IN, y + height]])
        yield Spot(corner=(x, y), angle=0.0, boxes=boxes, far=reach > _CLEAR_IN)


def clearest(spots: Sequence[Spot], taken: Boxes, width: float, height: float) -> Spot:
    """The best spot inside a plot of this size, the first of equals."""
    inside = [spot for spot in spots if spot.is_within(width, height)]
    return min(inside or spots, key=lambda spot: spot.cost(taken))


def _steps(start: XY, end: XY, step: float) -> Boxes:
    return np.linspace(start, end, max(1, ceil(dist(start, end) / step)) + 1)


def _slanted(x: float, y: float, length: float, height: float, angle: float) -> Boxes:
    """Boxes over text: one where it is level, else squares along its middle, small enough to lie inside it."""
    if angle == 0:
        return np.array([[x, y, x + length, y + height]])
    half, across, up = height / 2, cos(angle), sin(angle)
    first = (x + half * (across - up), y + half * (across + up))
    last = (first[0] + (length - height) * across, first[1] + (length - height) * up)
    return around(_steps(first, last, half), half * sqrt(0.5))


_LETTER = 0.8  # of a line's height: capitals and digits without the space between lines
_LINE_IN, _CURVE_IN, _MARKER_IN = 0.012, 0.02, 0.045  # a curve must not be covered: wider than it is
_HALO_PT = 1.2
_LED_RINGS = 8


class Labels:
    """Writes labels into the axes of a sheet that is laid out, clear of the lines, markers and whiskers there."""

    def __init__(self, sheet: Sheet, axes: Axes) -> None:
        self._axes, self._size_in = axes, sheet.size_of(axes)
        self._taken = np.vstack([np.empty((0, 4)), *self._drawn()])

    def _drawn(self) -> Iterator[Boxes]:
        for line in self._axes.lines:
            if not line.get_transform().contains_branch(self._axes.transData):
                continue  # a rule across the axes
            points = self._places(line.get_xydata())
            has_markers = line.get_marker() not in ("None", "", None, "_")
            if line.get_linestyle() != "None":
                yield along(points, _CURVE_IN if has_markers else _LINE_IN)
            if has_markers:
                yield around(points, _MARKER_IN)
        for lines in self._axes.collections:
            if isinstance(lines, LineCollection):
                yield from (along(self._places(ends), _LINE_IN) for ends in lines.get_segments())

    def _places(self, points: Any) -> list[XY]:
        return [self._place(point) for point in points]

    def _place(self, point: XY) -> XY:
        """Inches from the lower left corner."""
        across, up = (self._axes.transScale + self._axes.transLimits).transform(point)
        return self._size_in[0] * float(across), self._size_in[1] * float(up)

    def along(self, text: str, start: XY, end: XY, color: str = INK, also: Sequence[tuple[XY, XY]] = ()) -> None:
        """Write along a straight line between two points of data, on the side and at the place that cover least.

        The lines `also` are taken where all of the first would cover more. Labels lie over roofs and references,
        which their halo may cut, and under curves, which it must not.
        """
        ends = [(self._place(one), self._place(other)) for one, other in ((start, end), *also)]
        spots = [spot for one, other in ends for spot in spots_beside(one, other, *_size(text))]
        self._write(text, spots, color=color, zorder=2.5)

    def at_marker(self, text: str, point: XY) -> None:
        """Write at a marker, where that covers least."""
        self._write(text, list(spots_around(self._place(point), *_size(text))), color=INK, zorder=4)

    def led_to_marker(self, text: str, point: XY) -> None:
        """Write near a marker that others may be close to, with a line between the two."""
        at, (width, height) = self._place(point), self._size_in
        spot = self._write(text, list(spots_around(at, *_size(text), _LED_RINGS)), color=INK, zorder=4)
        left, low, right, high = spot.boxes[0]
        ends = [at, (min(max(at[0], left), right), min(max(at[1], low), high))]
        look: Any = {"color": INK, "linewidth": 0.4, "zorder": 2.8, "transform": self._axes.transAxes}
        self._axes.add_line(Line2D(*zip(*((x / width, y / height) for x, y in ends), strict=True), **look))
        self._taken = np.vstack([self._taken, along(ends, _LINE_IN)])

    def _write(self, text: str, spots: Sequence[Spot], **look: Any) -> Spot:
        width, height = self._size_in
        spot = clearest(spots, self._taken, width, height)
        self._taken = np.vstack([self._taken, spot.boxes])
        x, y = spot.corner[0] / width, spot.corner[1] / height
        halo = [withStroke(linewidth=_HALO_PT, foreground="white")]
        turned: Any = {"rotation": degrees(spot.angle), "rotation_mode": "anchor", "path_effects": halo}
        self._axes.text(x, y, text, transform=self._axes.transAxes, **turned, **look)
        return spot


def _size(text: str) -> XY:
    return width_in(text), line_in() * _LETTER


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
        return _times(self.read, self.intensity)


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


def draw_rooflines(sheet: Sheet, axes: Axes, roofs: Rooflines) -> None:
    """Draw roofs over tokens per expert, in 10¹² operations/s, and write their names along them.

    Each peak begins where the read roof reaches it; one that lies beyond the axes is no roof in it and not drawn. Its
    name has the dtype where peaks differ in it: elsewhere the unit says it.
    """
    left, right = axes.get_xlim()
    slope = _times(roofs.slope, 1e-12) if roofs.slope else None
    peaks = {key: _times(peak, 1e-12) for key, peak in roofs.peaks.items()}
    names = list[tuple[str, XY, XY]]()
    for peak in peaks.values() or ([_ENDLESS] if slope else []):
        _band(axes, slope or _ENDLESS, peak)
    if slope and roofs.read:
        end = min([right, max(peak.mid for peak in peaks.values()) / slope.mid] if peaks else [right])
        start = max(left, axes.get_ylim()[0] / slope.mid)
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
        _dash(axes, line)
    sheet.labels.append(lambda: _name_roofs(Labels(sheet, axes), names, left))


def _name_roofs(labels: Labels, names: Sequence[tuple[str, XY, XY]], left: float) -> None:
    """The name of each roof along it; of a peak also before its left end, where nothing is above the slope."""
    for name, start, end in reversed(names):
        before = ((left, start[1]), start)
        labels.along(name, start, end, also=(before,) if start[1] == end[1] and left < start[0] else ())


def draw_read_time(sheet: Sheet, axes: Axes, read: Spread, weights: Sequence[tuple[float, int]]) -> None:
    """Draw the ms that reading the weights takes, given their bytes at each number of tokens per expert."""
    lows, mids, highs = ([total / read_s * 1e3 for _, total in weights] for read_s in (read.high, read.mid, read.low))
    xs = [x for x, _ in weights]
    axes.fill_between(xs, lows, highs, color=BAND, linewidth=0, zorder=0)
    _dash(axes, list(zip(xs, mids, strict=True)))
    name, start, end = f"read {number(read.mid / 1e9, 2)} GB/s", (xs[0], mids[0]), (xs[-1], mids[-1])
    sheet.labels.append(lambda: Labels(sheet, axes).along(name, start, end))


def roof_handle(provenance: Provenance) -> Artist:
    """Legend entry of roofs."""
    described = "described" if provenance == "simulated" else provenance
    return Line2D([], [], label=f"roof, {described}", **DASHED)


def _band(axes: Axes, slope: Spread, peak: Spread) -> None:
    """Between the roofline of the least and that of the most that was sampled."""
    left, right = axes.get_xlim()
    xs = [left * (right / left) ** (n / _STEPS) for n in range(_STEPS + 1)]
    lows, highs = [min(slope.low * x, peak.low) for x in xs], [min(slope.high * x, peak.high) for x in xs]
    axes.fill_between(xs, lows, highs, color=BAND, linewidth=0, zorder=0)


def _dash(axes: Axes, line: Sequence[XY]) -> None:
    axes.plot([x for x, _ in line], [y for _, y in line], zorder=1, **DASHED)


def _times(value: Spread, factor: float) -> Spread:
    return Spread(low=factor * value.low, mid=factor * value.mid, high=factor * value.high)


def _records(rows: Sequence[Row]) -> list[Record]:
    return [record for row in rows for record in row.records]
