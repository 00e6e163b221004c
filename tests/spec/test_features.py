"""The feature table and its labels."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ktbench.spec.features import FEATURES, Feature, FeatureValue, features_label, parse_features
from ktbench.spec.record import collect, dishonest
from tests.tiny import tiny_spec


def values_of(feature: Feature) -> st.SearchStrategy[FeatureValue]:
    names = st.sampled_from(feature.names) if feature.names else st.nothing()
    if feature.off in feature.names:
        return names
    return st.integers(0, 9) | names if feature.valued else st.booleans()


values = st.fixed_dictionaries({feature.name: values_of(feature) for feature in FEATURES})


@given(values)
def test_label_says_everything(asked: dict[str, FeatureValue]) -> None:
    assert parse_features(features_label(asked)) == asked


def test_labels_read_as_in_the_paper() -> None:
    assert features_label(parse_features("base")) == "base"
    assert features_label(parse_features("+c+v+d")) == "+v+d+c"
    assert features_label(parse_features("+v deferral=3")) == "+v deferral=3"


@pytest.mark.parametrize(
    "label", ["+x", "deferral", "skipping=-1", "+deferral", "v=1", "bas", "handover=3", "handover=", "flags"]
)
def test_unknown_label_names_the_allowed_ones(label: str) -> None:
    with pytest.raises(ValueError, match=r"allowed are \+a, \+v, \+m, .*deferral=N"):
        parse_features(label)


@pytest.mark.parametrize(
    ("asked", "counted", "contradiction"),
    [
        ({"avx512": True}, {"avx512_calls": 4}, ""),
        ({"avx512": True}, {"avx512_calls": 0}, "+v: avx512_calls 0, requested on"),
        ({}, {"avx512_calls": 4}, "+v: avx512_calls 4, requested off"),
        ({"avx512": True, "handover": "flags"}, {"avx512_calls": 4, "flag_answers": 9}, ""),
        ({"avx512": True}, {"avx512_calls": 4, "flag_answers": 9}, "handover: flag_answers 9, requested off"),
        ({"avx512": True}, {}, "+v: avx512_calls not counted, requested on"),
        ({"avx512": True, "dynamic": True}, {"avx512_calls": 4}, "+d: tasks_dynamic not counted, requested on"),
    ],
)
def test_evidence_contradicts_a_lie(
    asked: dict[str, FeatureValue], counted: dict[str, int], contradiction: str
) -> None:
    features = tiny_spec(**asked).engine.features
    assert dishonest(collect(features, counted)) == contradiction
