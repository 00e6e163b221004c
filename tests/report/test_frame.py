"""Axes of a known range: one value alone lies in the middle."""

from __future__ import annotations

import pytest
from matplotlib.figure import Figure

from ktbench.report.figures.marks import set_axes


@pytest.mark.parametrize("log", [True, False])
def test_one_value_alone_lies_in_the_middle(log: bool) -> None:
    axes = Figure(figsize=(4.0, 2.0)).add_axes((0.25, 0.25, 0.5, 0.5))
    set_axes(axes, (64.0, 64.0), (5.0, 5.0), log_x=log, log_y=log)
    assert tuple((axes.transScale + axes.transLimits).transform((64.0, 5.0))) == pytest.approx((0.5, 0.5))
    low, high = axes.get_xlim()
    assert low < 64.0 < high
