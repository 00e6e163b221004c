"""What a sweep may vary: axes and their points, the words of arms, and designs over features."""

from __future__ import annotations

from typing import Any

import pytest

from ktbench.spec.engine import EngineSpec
from ktbench.spec.features import BY_NAME, FEATURES
from ktbench.spec.sweep import (
    Design,
    SweepSpec,
    arm_changes,
    arm_features,
    arm_peer,
    arm_precision,
    on_avx2,
    without_packing,
)
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


ALL_OFF: dict[str, object] = {feature.key: feature.off for feature in FEATURES} | {"system": "ktbench"}


@pytest.mark.parametrize(
    ("arm", "changes"),
    [
        ("base", {}),
        ("base bf16", {"precision": "bf16"}),
        ("+v+d", {"engine.avx512": True, "engine.dynamic": True}),
        ("+v int8", {"engine.avx512": True, "precision": "int8"}),
        ("int4_g64 +m", {"engine.amx": True, "precision": "int4_g64"}),
        ("+v deferral=3 int4_g128", {"engine.avx512": True, "engine.deferral": 3, "precision": "int4_g128"}),
        ("llama.cpp", {"system": "llama.cpp"}),
        ("kt-kernel int8", {"system": "kt-kernel", "precision": "int8"}),
        ("transformers eager", {"system": "transformers", "peer.implementation": "eager"}),
        ("+p restarted", {"engine.prefix_cache": True, "workload.stream.cache": "restarted"}),
    ],
)
def test_words_become_changes_of_every_feature_of_the_system_and_of_the_precision_where_named(
    arm: str, changes: dict[str, object]
) -> None:
    assert arm_changes(arm) == ALL_OFF | changes


def test_features_and_precision_of_an_arm() -> None:
    assert {name for name, value in arm_features("+v+d int8").items() if value != BY_NAME[name].off} == {
        "avx512",
        "dynamic",
    }
    assert arm_precision("+v+d int8") == "int8"
    assert arm_precision("+v+d") is None
    assert arm_peer("+v+d") is None
    assert arm_peer("llama.cpp q4_0") == "llama.cpp"


@pytest.mark.parametrize(
    ("arm", "says"),
    [
        (
            "+x",
            r"arm '\+x': feature 'x' in '\+x': allowed are \+a, \+v, .*, one of bf16, .*, llama.cpp, .*",
        ),
        ("+v int3", r"feature 'int3': allowed are .* one of bf16"),
        ("+v int8 bf16", "names 2 precisions, allowed is one"),
        ("+v int8 int8", "names 2 precisions"),
        ("base int8", r"int8 needs \+a, \+v or \+m"),
        ("+b warm", r"warm needs \+p"),
        ("+p warm ram", "names 2 states of the prefix cache"),
        ("llama.cpp +v", r"llama.cpp has none of our features, leave out \+v"),
        ("llama.cpp kt-kernel", "names 2 systems, allowed is one"),
        ("llama.cpp eager", "eager goes with transformers, once"),
        ("+v eager", "eager goes with transformers, once"),
        ("deferral=1 int4_g32", r"int4_g32 needs \+a, \+v or \+m"),
    ],
)
def test_bad_arm_is_one_line(arm: str, says: str) -> None:
    with pytest.raises(ValueError, match=says) as raised:
        arm_changes(arm)
    assert "\n" not in str(raised.value)


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
    assert "dynamic work scheduling needs engine.avx2=true or engine.avx512=true or engine.amx=true" in lone.why


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


@pytest.mark.parametrize(
    ("arms", "with_avx2"),
    [
        (("base", "+v", "+m", "+v+d", "+v+d+n+c"), ("base", "+a", "+a+d", "+a+d+n+c")),
        (("base", "+v+m+d int8", "+m+d int8", "+v deferral=3"), ("base", "+a+d int8", "+a deferral=3")),
        (("base", "llama.cpp", "transformers grouped_mm"), ("base", "llama.cpp", "transformers grouped_mm")),
        (("base", "+a", "+v"), ("base", "+a")),
    ],
)
def test_arms_without_avx512_have_avx2_once(arms: tuple[str, ...], with_avx2: tuple[str, ...]) -> None:
    assert on_avx2(SweepSpec(arms=arms)).arms == with_avx2


def test_a_design_without_avx512_is_that_of_avx2() -> None:
    design = Design(kind="factorial", features=("+v", "+d", "deferral=3"), baseline="base")
    sweep = SweepSpec(arms=design.arms, design="factorial", features=design.features)
    assert on_avx2(sweep).features == ("+a", "+d", "deferral=3")
    assert set(on_avx2(sweep).arms) == {arm.replace("+v", "+a") for arm in design.arms}


def test_arms_without_packed_layers_are_there_once() -> None:
    arms = ("base", "+v+l", "+v", "+v+d+l int8 deferral=2", "llama.cpp")
    sweep = without_packing(SweepSpec(arms=arms, baseline="+v+l"))
    assert (sweep.arms, sweep.baseline) == (("base", "+v", "+v+d int8 deferral=2", "llama.cpp"), "+v")
