"""Arms are feature words or a peer, and at most one precision."""

from __future__ import annotations

import pytest

from ktbench.spec.features import FEATURES
from ktbench.spec.sweep import arm_changes, arm_features, arm_peer, arm_precision

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
    ],
)
def test_words_become_changes_of_every_feature_of_the_system_and_of_the_precision_where_named(
    arm: str, changes: dict[str, object]
) -> None:
    assert arm_changes(arm) == ALL_OFF | changes


def test_features_and_precision_of_an_arm() -> None:
    assert {name for name, value in arm_features("+v+d int8").items() if value} == {"avx512", "dynamic"}
    assert arm_precision("+v+d int8") == "int8"
    assert arm_precision("+v+d") is None
    assert arm_peer("+v+d") is None
    assert arm_peer("llama.cpp q4_0") == "llama.cpp"


@pytest.mark.parametrize(
    ("arm", "says"),
    [
        (
            "+x",
            r"arm '\+x': feature 'x' in '\+x': allowed are \+v, .*, one of bf16, int8, .*, llama.cpp, transformers",
        ),
        ("+v int3", r"feature 'int3': allowed are .* one of bf16"),
        ("+v int8 bf16", "names 2 precisions, allowed is one"),
        ("+v int8 int8", "names 2 precisions"),
        ("base int8", r"int8 needs \+v or \+m"),
        ("llama.cpp +v", r"llama.cpp has none of our features, leave out \+v"),
        ("llama.cpp kt-kernel", "names 2 systems, allowed is one"),
        ("llama.cpp eager", "eager goes with transformers, once"),
        ("+v eager", "eager goes with transformers, once"),
        ("deferral=1 int4_g32", r"int4_g32 needs \+v or \+m"),
    ],
)
def test_bad_arm_is_one_line(arm: str, says: str) -> None:
    with pytest.raises(ValueError, match=says) as raised:
        arm_changes(arm)
    assert "\n" not in str(raised.value)
