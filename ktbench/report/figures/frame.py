"""Axes of a known size and range: where data lies in inches, where text fits, which ticks have room for their names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import ceil, degrees, floor, log10
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FixedFormatter, FixedLocator, MaxNLocator, NullLocator

from ktbench.report.figures.label_placement import (
    XY,
    Boxes,
    Spot,
    along,
    around,
    clearest,
    spots_around,
    spots_beside,
)
from ktbench.report.figures.text_metrics import INK, line_in, width_in

_LETTER = 0.8  # of a line's height: capitals and digits without the space between lines
_GAP_IN = 0.04
_LINE_IN, _MARKER_IN = 0.012, 0.045
_HALO_PT = 1.2
_LED_RINGS = 8
_WIDE = 8.0  # above this ratio of largest to least a linear axis loses the small values
_MARGIN, _ABOVE = 0.06, 1.12  # room beside the outermost values and above the largest


@dataclass(kw_only=True, slots=True)
class Frame:
    """Axes with limits `x` and `y` in data and boxes for what is drawn in them so far.

    `log_x` is to the base of 2, `log_y` to that of 10; `x_name` stands below. Limits that are one value open around it.
    """

    axes: Axes
    x: XY
    y: XY
    x_name: str
    log_x: bool = False
    log_y: bool = False
    taken: Boxes = field(default_factory=lambda: np.empty((0, 4)))
    size_in: XY = field(init=False)

    def __post_init__(self) -> None:
        self.x, self.y = _opened(self.x, self.log_x), _opened(self.y, self.log_y)
        if self.log_x:
            self.axes.set_xscale("log", base=2)
        if self.log_y:
            self.axes.set_yscale("log", base=10)
        self.axes.set_xlim(self.x)
        self.axes.set_ylim(self.y)
        self.axes.set_xlabel(self.x_name)
        figure = self.axes.get_figure(root=True)
        assert figure is not None
        self.size_in = self.axes.bbox.width / figure.dpi, self.axes.bbox.height / figure.dpi

    def place(self, point: XY) -> XY:
        """Inches from the lower left corner."""
        across, up = (self.axes.transScale + self.axes.transLimits).transform(point)
        return self.size_in[0] * float(across), self.size_in[1] * float(up)

    def take_line(self, points: Sequence[XY], reach_in: float = _LINE_IN) -> None:
        """Keep labels `reach_in` inches off a line."""
        self.take(along([self.place(point) for point in points], reach_in))

    def take_marker(self, point: XY) -> None:
        """Keep labels off a marker."""
        self.take(around(self.place(point), _MARKER_IN))

    def take(self, boxes: Boxes) -> None:
        """Keep labels off boxes, in inches."""
        self.taken = np.vstack([self.taken, boxes])

    def label(self, text: str, start: XY, end: XY, color: str = INK, also: Sequence[tuple[XY, XY]] = ()) -> None:
        """Write along a straight line between two points of data, on the side and at the place that cover least.

        The lines `also` are taken where all of the first would cover more. Labels lie over roofs and references,
        which their halo may cut, and under curves, which it must not.
        """
        ends = [(self.place(one), self.place(other)) for one, other in ((start, end), *also)]
        spots = [spot for one, other in ends for spot in spots_beside(one, other, *_size(text))]
        self._write(text, spots, color=color, zorder=2.5)

    def label_marker(self, text: str, point: XY) -> None:
        """Write at a marker, where that covers least."""
        self._write(text, list(spots_around(self.place(point), *_size(text))), color=INK, zorder=4)

    def lead_to_marker(self, text: str, point: XY) -> None:
        """Write near a marker that others may be close to, with a line between the two."""
        at, (width, height) = self.place(point), self.size_in
        spot = self._write(text, list(spots_around(at, *_size(text), _LED_RINGS)), color=INK, zorder=4)
        left, low, right, high = spot.boxes[0]
        end = min(max(at[0], left), right), min(max(at[1], low), high)
        ends = [(x / width, y / height) for x, y in (at, end)]
        look: Any = {"color": INK, "linewidth": 0.4, "zorder": 2.8, "transform": self.axes.transAxes}
        self.axes.add_line(Line2D(*zip(*ends, strict=True), **look))
        self.take(along([at, end], _LINE_IN))

    def _write(self, text: str, spots: Sequence[Spot], **look: Any) -> Spot:
        width, height = self.size_in
        spot = clearest(spots, self.taken, width, height)
        self.take(spot.boxes)
        self.axes.text(
            spot.corner[0] / width,
            spot.corner[1] / height,
            text,
            transform=self.axes.transAxes,
            rotation=degrees(spot.angle),
            rotation_mode="anchor",
            path_effects=[withStroke(linewidth=_HALO_PT, foreground="white")],
            **look,
        )
        return spot

    def ticks(self, x: Sequence[float], y: Sequence[float], *, named: bool = True) -> None:
        """Ticks at these values, each `x` tick named where it has room, `y` ticks where `named`."""
        self.axes.xaxis.set_major_locator(FixedLocator(list(x)))
        self.axes.xaxis.set_major_formatter(FixedFormatter(self._names(x)))
        self.axes.yaxis.set_major_locator(FixedLocator(list(y)))
        self.axes.yaxis.set_major_formatter(FixedFormatter([tick_name(value) if named else "" for value in y]))
        for axis in (self.axes.xaxis, self.axes.yaxis):
            axis.set_minor_locator(NullLocator())

    def _names(self, values: Sequence[float]) -> list[str]:
        """Names of every value, or of every second, third ... from the first where they would touch."""
        every = (
            [f"{value:g}" if n % step == 0 else "" for n, value in enumerate(values)]
            for step in range(1, len(values) + 1)
        )
        return next((names for names in every if self._fits(values, names)), [])

    def _fits(self, values: Sequence[float], names: Sequence[str]) -> bool:
        named = [(self.place((value, self.y[1]))[0], name) for value, name in zip(values, names, strict=True) if name]
        spans = [(x - width_in(name) / 2, x + width_in(name) / 2) for x, name in named]
        return all(right[0] - left[1] >= _GAP_IN for left, right in pairwise(spans))


def fitted(
    axes: Axes, xs: Iterable[float], lows: Sequence[float], highs: Sequence[float], x_name: str, *, log_y: bool
) -> Frame:
    """Axes around values from `lows` to `highs`: logarithmic in x where `xs` are wide, in y from 0 unless `log_y`."""
    ticks, bottom, top = sorted({*xs}) or [1.0], min(lows, default=1.0), max(highs, default=1.0)
    left, right, log_x = ticks[0], ticks[-1], is_wide(ticks, ticks)
    room = (right / left) ** _MARGIN if log_x else _MARGIN * (right - left) or 1.0
    x = (left / room, right * room) if log_x else (left - room, right + room)
    above = max(_ABOVE, (top / bottom) ** _MARGIN) if log_y else _ABOVE  # of many decades 12 % is less than a marker
    y = (bottom / above if log_y else 0.0, top * above)
    frame = Frame(axes=axes, x=x, y=y, x_name=x_name, log_x=log_x, log_y=log_y)
    frame.ticks(ticks, decades(*y) if log_y else round_ticks(y[1]))
    return frame


def tick_name(value: float) -> str:
    """`500`, `50k`: short enough for the room beside an axis."""
    return f"{value / 1000:g}k" if value >= 10_000 else f"{value:g}"


def is_wide(lows: Sequence[float], highs: Sequence[float]) -> bool:
    """Whether a linear axis would lose the smallest of these values."""
    return min(lows) > 0 and max(highs) > _WIDE * min(lows)


def decades(low: float, high: float) -> list[float]:
    """Powers of ten between two positive numbers, and their doubles and fives where those are few."""
    tens = [10.0**n for n in range(floor(log10(low)), ceil(log10(high)) + 1)]
    shown = [ten for ten in tens if low <= ten <= high]
    finer = [ten * part for ten in tens for part in (1, 2, 5) if low <= ten * part <= high]
    return shown if len(shown) > 2 else finer


def round_ticks(top: float) -> list[float]:
    """At most six steps of round numbers from 0 up to `top`."""
    ticks = MaxNLocator(6, steps=[1, 2, 5, 10]).tick_values(0, top)
    return [float(tick) for tick in ticks if tick <= top]


def _opened(limits: XY, log: bool) -> XY:
    low, high = limits
    if low < high:
        return limits
    return (low / 2, high * 2) if log else (low - 1, high + 1)


def _size(text: str) -> XY:
    return width_in(text), line_in() * _LETTER
