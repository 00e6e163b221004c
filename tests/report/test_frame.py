"""Axes of a known size: where data lies on them."""

from __future__ import annotations

import pytest
from matplotlib.figure import Figure

from ktbench.report.figures.frame import Frame


@pytest.mark.parametrize("log", [True, False])
def test_one_value_alone_lies_in_the_middle(log: bool) -> None:
    axes = Figure(figsize=(4.0, 2.0)).add_axes((0.25, 0.25, 0.5, 0.5))
    frame = Frame(axes=axes, x=(64.0, 64.0), y=(5.0, 5.0), x_name="tokens", log_x=log, log_y=log)
    assert frame.place((64.0, 5.0)) == pytest.approx((1.0, 0.5))
    frame.ticks([64.0], [5.0])
    low, high = axes.get_xlim()
    assert low < 64.0 < high
