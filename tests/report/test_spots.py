from __future__ import annotations

from math import degrees, pi

import pytest

from ktbench.report.figures.label_placement import Box, along, around, clearest, spots_beside

UNIT = Box(left=0, bottom=0, right=1, top=1)


@pytest.mark.parametrize(
    ("other", "area"),
    [
        (UNIT, 1.0),
        (Box(left=0.5, bottom=0.75, right=2, top=2), 0.125),
        (Box(left=1, bottom=0, right=2, top=1), 0.0),
        (Box(left=5, bottom=5, right=6, top=6), 0.0),
    ],
)
def test_common_area(other: Box, area: float) -> None:
    assert UNIT.common(other) == other.common(UNIT) == area


def test_a_line_is_covered_without_gaps() -> None:
    boxes = along([(0, 0), (1, 0.5)], 0.012)
    for n in range(101):
        spot = around((n / 100, n / 200), 0.001)
        assert any(box.common(spot) for box in boxes)


def test_a_level_label_stands_above_the_right_end() -> None:
    spot = clearest(list(spots_beside((0, 1), (3, 1), 0.5, 0.1)), [], 3, 2)
    (box,) = spot.boxes
    assert box.right == pytest.approx(3) and box.bottom > 1
    assert spot.angle == 0


def test_what_is_there_pushes_a_label_aside_and_then_below() -> None:
    spots = list(spots_beside((0, 1), (3, 1), 0.5, 0.1))
    aside = clearest(spots, [Box(left=2.8, bottom=1, right=3, top=2)], 3, 2)
    assert aside.boxes[0].right <= 2.8 and aside.boxes[0].bottom > 1
    below = clearest(spots, [Box(left=0, bottom=1, right=3, top=2)], 3, 2)
    assert below.boxes[0].top < 1


def test_a_label_stays_in_the_plot() -> None:
    spot = clearest(list(spots_beside((0, 1.95), (3, 1.95), 0.5, 0.1)), [], 3, 2)
    assert spot.boxes[0].top < 1.95


def test_a_slanted_label_runs_along_its_slope_above_it() -> None:
    spot = clearest(list(spots_beside((0, 0), (2, 2), 0.6, 0.1)), [], 2, 2)
    assert degrees(spot.angle) == pytest.approx(45) and spot.angle == pytest.approx(pi / 4)
    assert all((box.bottom + box.top) > (box.left + box.right) for box in spot.boxes)
    assert len(spot.boxes) > 3
