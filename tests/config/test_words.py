"""Python values become words that Hydra reads back as these values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ktbench.config.lists import parsed, split_lists
from ktbench.config.words import words_of
from ktbench.spec.errors import RequestError

texts = st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "S", "Zs")), min_size=1, max_size=20)
leaves = st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.floats(-1e9, 1e9) | texts


def read_back(word: str) -> Any:
    value: Any = parsed(word).value()
    return [_plain(one) for one in value] if isinstance(value, list) else _plain(value)


def _plain(value: Any) -> Any:
    return getattr(value, "text", value)


@given(leaves | st.lists(leaves, max_size=4))
def test_a_value_is_read_back(value: Any) -> None:
    (word,) = words_of({"engine.key": value})
    assert read_back(word) == value
    assert type(read_back(word)) is type(value)


@given(st.lists(texts, min_size=2, max_size=4, unique=True))
def test_a_tuple_is_an_axis(values: list[str]) -> None:
    assert split_lists(words_of({"engine.key": tuple(values)}), ()).lists == {"engine.key": values}


def test_mappings_are_keys_below_and_names_stay_plain() -> None:
    keys = {"model": "deepseek_v3", "engine": {"avx512": True, "placement": {"ratio": 0.1}}, "run_name": "7"}
    assert words_of(keys) == [
        "model=deepseek_v3",
        "engine.avx512=true",
        "engine.placement.ratio=0.1",
        "run_name='7'",
    ]
    assert words_of({"machine": Path("boxes/my_box.yaml"), "sweep.arms": ["base", "+v+d int8"]}) == [
        "machine=boxes/my_box.yaml",
        "sweep.arms=[base,'+v+d int8']",
    ]


def test_what_is_no_value_is_named() -> None:
    with pytest.raises(RequestError, match=r"^engine\.avx512: object"):
        words_of({"engine": {"avx512": object()}})
