from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ktbench.engine.workload.routing import Kind, route

KINDS = st.sampled_from(get_args(Kind))


@st.composite
def sizes(draw: st.DrawFn) -> tuple[int, int, int]:
    experts = draw(st.integers(1, 60))
    return draw(st.integers(0, 50)), experts, draw(st.integers(1, experts))


@given(kind=KINDS, size=sizes(), seed=st.integers(0, 2**31))
def test_every_token_selects_distinct_experts_with_weights_of_sum_one(
    kind: Kind, size: tuple[int, int, int], seed: int
) -> None:
    tokens, experts, top_k = size
    ids, gates = route(kind, tokens, experts, top_k, seed)
    assert ids.shape == gates.shape == (tokens, top_k)
    assert ids.dtype == np.int64
    assert gates.dtype == np.float32
    assert all(len(set(row)) == top_k for row in ids.tolist())
    assert ((ids >= 0) & (ids < experts)).all()
    assert (gates > 0).all()
    assert np.allclose(gates.sum(axis=1), 1, atol=1e-6)
    again = route(kind, tokens, experts, top_k, seed)
    assert np.array_equal(ids, again[0])
    assert np.array_equal(gates, again[1])


@given(size=sizes(), seed=st.integers(0, 2**31))
def test_balanced_gives_every_expert_the_same_load_give_or_take_one(size: tuple[int, int, int], seed: int) -> None:
    tokens, experts, top_k = size
    load = np.bincount(route("balanced", tokens, experts, top_k, seed)[0].ravel(), minlength=experts)
    assert load.max() - load.min() <= 1


def test_concentrated_selects_top_k_experts_in_all() -> None:
    assert len(np.unique(route("concentrated", 100, 32, 4, 0)[0])) == 4


def test_zipf_halves_with_the_rank() -> None:
    """With k = 1 the share of rank r is (1/r) / H(64); the first rank has 0.211 of all, twice the second."""
    load = np.sort(np.bincount(route("zipf", 20_000, 64, 1, 7)[0].ravel(), minlength=64))[::-1]
    share = load / load.sum()
    harmonic = (1 / np.arange(1, 65)).sum()
    assert np.allclose(share[:4], 1 / np.arange(1, 5) / harmonic, atol=0.01)


def test_seeds_differ() -> None:
    for kind in get_args(Kind):
        assert not np.array_equal(route(kind, 20, 64, 4, 0)[0], route(kind, 20, 64, 4, 1)[0])
        assert not np.array_equal(route(kind, 20, 64, 4, (0, 1))[0], route(kind, 20, 64, 4, (0, 2))[0])


@pytest.mark.parametrize("top_k", [0, 9])
def test_impossible_top_k_is_refused(top_k: int) -> None:
    with pytest.raises(ValueError, match=f"top_k={top_k}: allowed are 1 to experts=8"):
        route("balanced", 1, 8, top_k, 0)


def test_unknown_routing_is_refused() -> None:
    with pytest.raises(ValueError, match="allowed are balanced, zipf, concentrated"):
        route("random", 1, 8, 1, 0)  # type: ignore[arg-type]
