"""Designs: their arms, what they drop and why, and what they refuse."""

from __future__ import annotations

from typing import Any

import pytest

from ktbench.spec.engine import EngineSpec
from ktbench.spec.sweep import Design, SweepSpec, arm_features
from ktbench.spec.wire import from_plain, to_plain


def test_a_ladder_adds_one_feature_after_the_other() -> None:
    ladder = Design(kind="ladder", features=("+v", "+d", "deferral=3"))
    assert ladder.arms == ("base", "+v", "+v+d", "+v+d deferral=3")
    assert ladder.dropped == ()


def test_leave_one_out_has_none_all_and_all_but_each() -> None:
    design = Design(kind="leave_one_out", features=("+d", "+l", "deferral=3"), baseline="+v")
    assert design.arms == ("+v", "+v+d+l deferral=3", "+v+l deferral=3", "+v+d deferral=3", "+v+d+l")


def test_what_needs_a_feature_is_dropped_without_it_and_says_why() -> None:
    design = Design(kind="factorial", features=("+v", "+m", "+d"))
    assert design.arms == ("base", "+v", "+m", "+v+m", "+v+d", "+m+d", "+v+m+d")
    (lone,) = design.dropped
    assert lone.arm == "+d"
    assert "dynamic work scheduling needs engine.avx512=true or engine.amx=true" in lone.why


def test_a_factorial_has_every_combination_that_can_be_built() -> None:
    design = Design(kind="factorial", features=("+v", "+m", "+d", "+n", "+c", "deferral=2"))
    assert len(set(design.arms)) == len(design.arms)
    assert len(design.arms) + len(design.dropped) == 64
    for arm in design.arms:
        EngineSpec(**arm_features(arm))  # type: ignore[arg-type]
    for one in design.dropped:
        with pytest.raises(ValueError, match="needs engine"):
            EngineSpec(**arm_features(one.arm))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"features": ()}, r"sweep.design=factorial: needs sweep.features, such as \[\+v,\+d\]"),
        ({"features": ("+w",)}, "sweep.features: feature 'w' in '.w': allowed are"),
        ({"features": ("int8",)}, "sweep.features: feature 'int8': allowed are"),
        ({"features": ("+v", "base")}, "sweep.features: 'base' turns nothing on"),
        ({"features": ("+v", "+v")}, "both set fused MoE kernel, AVX-512"),
        ({"features": ("+d",), "baseline": "+v+d"}, r"'\+d' and '\+v\+d' both set dynamic work scheduling"),
        ({"features": ("+d",), "baseline": "llama.cpp"}, "sweep.baseline: feature 'llama.cpp': allowed are"),
        ({"features": ("+d", "+l")}, "sweep.features: they cannot all be on together: engine.dynamic"),
        ({"features": ("deferral=1", "skipping=1")}, "cannot all be on together: .* exclude each other"),
        ({"features": ("+v", "+m", "+d", "+n", "+c", "+l", "deferral=1")}, "a factorial of 7 has 128 combinations"),
    ],
)
def test_what_makes_no_design_is_refused_in_one_line(asked: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says) as refused:
        Design(kind="factorial", **asked)
    assert "\n" not in str(refused.value)


def test_a_sweep_holds_the_arms_of_its_design() -> None:
    arms = ("base", "+v", "+v+d")
    sweep = SweepSpec(design="factorial", features=("+v", "+d"), arms=arms)
    assert [one.arm for one in sweep.dropped] == ["+d"]
    assert from_plain(to_plain(sweep), SweepSpec) == sweep
    with pytest.raises(ValueError, match=r"sweep.design=ladder: makes the arms of sweep.features, set sweep.arms=\[\]"):
        SweepSpec(design="ladder", features=("+v", "+d"), arms=("base", "+v+d"))
    with pytest.raises(ValueError, match="needs sweep.design, such as factorial"):
        SweepSpec(features=("+v",), arms=("base",))
    assert SweepSpec(arms=("base",)).dropped == ()
