from __future__ import annotations

from math import degrees, pi

import numpy as np
import pytest

from ktbench.report.figures.labels import Boxes, along, around, clearest, overlap, spots_beside


def box(left: float, bottom: float, right: float, top: float) -> Boxes:
    return np.array([[left, bottom, right, top]], dtype=float)


UNIT = box(0, 0, 1, 1)


@pytest.mark.parametrize(
    ("other", "area"),
    [(UNIT, 1.0), (box(0.5, 0.75, 2, 2), 0.125), (box(1, 0, 2, 1), 0.0), (box(5, 5, 6, 6), 0.0)],
)
def test_common_area(other: Boxes, area: float) -> None:
    assert overlap(UNIT, other) == overlap(other, UNIT) == area


def test_a_line_is_covered_without_gaps() -> None:
    boxes = along([(0, 0), (1, 0.5)], 0.012)
    assert all(overlap(boxes, around((n / 100, n / 200), 0.001)) > 0 for n in range(101))


def test_a_level_label_stands_above_the_right_end() -> None:
    spot = clearest(list(spots_beside((0, 1), (3, 1), 0.5, 0.1)), np.empty((0, 4)), 3, 2)
    ((_, bottom, right, _),) = spot.boxes
    assert right == pytest.approx(3) and bottom > 1
    assert spot.angle == 0


def test_what_is_there_pushes_a_label_aside_and_then_below() -> None:
    spots = list(spots_beside((0, 1), (3, 1), 0.5, 0.1))
    aside = clearest(spots, box(2.8, 1, 3, 2), 3, 2)
    assert aside.boxes[0, 2] <= 2.8 and aside.boxes[0, 1] > 1
    below = clearest(spots, box(0, 1, 3, 2), 3, 2)
    assert below.boxes[0, 3] < 1


def test_a_label_stays_in_the_plot() -> None:
    spot = clearest(list(spots_beside((0, 1.95), (3, 1.95), 0.5, 0.1)), np.empty((0, 4)), 3, 2)
    assert spot.boxes[0, 3] < 1.95


def test_a_slanted_label_runs_along_its_slope_above_it() -> None:
    spot = clearest(list(spots_beside((0, 0), (2, 2), 0.6, 0.1)), np.empty((0, 4)), 2, 2)
    assert degrees(spot.angle) == pytest.approx(45) and spot.angle == pytest.approx(pi / 4)
    assert all(bottom + top > left + right for left, bottom, right, top in spot.boxes)
    assert len(spot.boxes) > 3
