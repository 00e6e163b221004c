"""What a sweep may vary, and the points that its axes span."""

from __future__ import annotations

from typing import Any

import pytest

from ktbench.spec.sweep import SweepSpec
from ktbench.spec.wire import from_plain, to_plain


def test_without_axes_there_is_one_point_that_changes_nothing() -> None:
    assert SweepSpec(arms=("base",)).points == ({},)


def test_axes_multiply_and_a_mapping_sets_what_goes_with_a_value() -> None:
    batches = (1, {"workload.batch": 64, "workload.steps": 2})
    sweep = SweepSpec(arms=("base",), axes={"workload.seed": (0, 1), "workload.batch": batches})
    assert sweep.points == (
        {"workload.seed": 0, "workload.batch": 1},
        {"workload.seed": 0, "workload.batch": 64, "workload.steps": 2},
        {"workload.seed": 1, "workload.batch": 1},
        {"workload.seed": 1, "workload.batch": 64, "workload.steps": 2},
    )
    assert from_plain(to_plain(sweep), SweepSpec) == sweep


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"arms": ("+v", "+w")}, "feature 'w'"),
        ({"arms": ("+v", "+v int5"), "baseline": "+v"}, "feature 'int5'"),
        ({"arms": ("base", "+v", "+v")}, r"'\+v' is there twice"),
        ({"arms": ("+v",)}, "sweep.baseline='base' is none of"),
        ({"arms": ("+v int8",), "baseline": "+v"}, r"sweep.baseline='\+v' is none of"),
        ({"arms": ("base",), "axes": {"workload.batch": ()}}, "sweep.axes.workload.batch has no values"),
        ({"arms": ("base",), "axes": {"workload.batch": ({"workload.steps": 1},)}}, "must set workload.batch too"),
        ({"axes": {"workload.batch": (1,)}}, "needs sweep.arms"),
        ({"parts": ("a",), "arms": ("base",)}, "sweep.parts: each part has arms and axes of its own"),
        ({"parts": ("a",), "axes": {"workload.batch": (1,)}}, "each part has arms and axes"),
        ({"parts": ("a/x", "b/x")}, "two parts are called x"),
    ],
)
def test_what_makes_no_sense_is_refused(asked: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        SweepSpec(**asked)
