"""Finds room for labels in a plot, in inches from its lower left corner."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from math import atan2, ceil, cos, dist, sin, sqrt

import numpy as np
from numpy.typing import ArrayLike, NDArray

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
