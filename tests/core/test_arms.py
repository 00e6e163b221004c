"""Arms are feature words and at most one precision."""

from __future__ import annotations

import pytest

from ktbench.core.arms import arm_changes, arm_features, arm_precision
from ktbench.core.features import FEATURES

ALL_OFF = {feature.key: feature.off for feature in FEATURES}


@pytest.mark.parametrize(
    ("arm", "changes"),
    [
        ("base", {}),
        ("base bf16", {"precision": "bf16"}),
        ("+v+d", {"engine.v": True, "engine.d": True}),
        ("+v int8", {"engine.v": True, "precision": "int8"}),
        ("int4_g64 +m", {"engine.m": True, "precision": "int4_g64"}),
        ("+v deferral=3 int4_g128", {"engine.v": True, "engine.deferral": 3, "precision": "int4_g128"}),
    ],
)
def test_words_become_changes_of_every_feature_and_of_the_precision_where_named(
    arm: str, changes: dict[str, object]
) -> None:
    assert arm_changes(arm) == ALL_OFF | changes


def test_features_and_precision_of_an_arm() -> None:
    assert {name for name, value in arm_features("+v+d int8").items() if value} == {"v", "d"}
    assert arm_precision("+v+d int8") == "int8"
    assert arm_precision("+v+d") is None


@pytest.mark.parametrize(
    ("arm", "says"),
    [
        ("+x", r"arm '\+x': feature 'x' in '\+x': allowed are \+v, .*, and one of bf16, int8, int4_g32"),
        ("+v int3", r"feature 'int3': allowed are .* and one of bf16"),
        ("+v int8 bf16", "names 2 precisions, allowed is one"),
        ("+v int8 int8", "names 2 precisions"),
        ("base int8", r"int8 needs \+v or \+m"),
        ("deferral=1 int4_g32", r"int4_g32 needs \+v or \+m"),
    ],
)
def test_bad_arm_is_one_line(arm: str, says: str) -> None:
    with pytest.raises(ValueError, match=says) as raised:
        arm_changes(arm)
    assert "\n" not in str(raised.value)
