"""Copies of a layer read past the cache, and no more of them than that takes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ktbench.spec.cells import layer_copies


@given(expert_bytes=st.integers(1, 10**10), cache_bytes=st.integers(0, 10**10))
def test_one_round_exceeds_the_cache_by_a_quarter_unless_the_layer_is_tiny(expert_bytes: int, cache_bytes: int) -> None:
    copies = layer_copies(expert_bytes, cache_bytes)
    assert 1 <= copies <= 64
    assert copies == 64 or 4 * copies * expert_bytes > 5 * cache_bytes
    assert copies == 1 or 4 * (copies - 1) * expert_bytes <= 5 * cache_bytes


def test_a_layer_without_weights_is_refused() -> None:
    with pytest.raises(ValueError, match="expert_bytes=0: must be at least 1"):
        layer_copies(0, 1)
