"""Token ids of prompts, and the experts and gate weights of synthetic routing: shapes, loads and refusals."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ktbench.engine.workload.routing import Kind, layer_selections, prompt_ids, route
from ktbench.spec.run_spec import Routing, WorkloadSpec
from ktbench.spec.shape import moe_shape
from tests.tiny import CONFIG

SIZES = st.integers(1, 40)


@given(vocab=st.integers(1, 200_000), batch=SIZES, tokens=SIZES, seed=st.integers(0, 2**31))
def test_ids_are_of_the_vocabulary_and_repeatable(vocab: int, batch: int, tokens: int, seed: int) -> None:
    ids = prompt_ids(vocab, batch, tokens, seed)
    assert ids.shape == (batch, tokens)
    assert ids.dtype == np.int64
    assert ids.min() >= 0
    assert ids.max() < vocab
    assert np.array_equal(ids, prompt_ids(vocab, batch, tokens, seed))


def test_seeds_differ_and_ids_are_spread() -> None:
    ids = prompt_ids(10, 1, 10_000, seed=1)
    assert not np.array_equal(ids, prompt_ids(10, 1, 10_000, seed=2))
    assert np.bincount(ids.ravel(), minlength=10).min() > 850


def test_equal_arguments_give_equal_ids_on_any_machine() -> None:
    assert prompt_ids(1000, 1, 4, seed=0).tolist() == [[850, 636, 511, 269]]


@pytest.mark.parametrize("wrong", ["vocab", "batch", "tokens"])
def test_sizes_below_one_are_refused(wrong: str) -> None:
    sizes = {"vocab": 5, "batch": 5, "tokens": 5} | {wrong: 0}
    with pytest.raises(ValueError, match=f"{wrong}=0"):
        prompt_ids(**sizes, seed=0)


SHAPE = moe_shape(CONFIG)  # 8 experts, top-2


def layer(routing: Routing = "balanced", batch: int = 12, **options: object) -> WorkloadSpec:
    return WorkloadSpec(phase="layer", prompt=1, steps=3, batch=batch, routing=routing, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("routing", ["balanced", "zipf", "concentrated"])
def test_every_step_has_a_selection_of_its_own(routing: Routing) -> None:
    selections = layer_selections(layer(routing), SHAPE)
    assert len(selections) == 3
    for ids, gates in selections:
        assert ids.shape == gates.shape == (12, 2)
        assert (ids[:, 0] != ids[:, 1]).all()
        assert np.allclose(gates.sum(axis=1), 1, atol=1e-6)
    assert not np.array_equal(selections[0][1], selections[1][1])
    again = layer_selections(layer(routing), SHAPE)
    assert all(np.array_equal(one[0], other[0]) for one, other in zip(selections, again, strict=True))


@pytest.mark.parametrize("active", [2, 3, 4, 6, 8])
def test_active_experts_get_equally_many_tokens(active: int) -> None:
    for ids, _ in layer_selections(layer(active_experts=active), SHAPE):
        assert np.bincount(ids.ravel()).tolist() == [12 * 2 // active] * active


def test_recorded_selections_follow_the_file(tmp_path: Path) -> None:
    tokens = np.array([[[0, 7]], [[1, 2]]], dtype=np.uint8)
    np.savez(tmp_path / "t.npz", decode=tokens)
    for ids, gates in layer_selections(layer("recorded", batch=4, trace=str(tmp_path / "t.npz")), SHAPE):
        assert sorted(ids.tolist()) == [[0, 7], [0, 7], [1, 2], [1, 2]]
        assert gates.shape == (4, 2)


def test_routing_that_cannot_be_had_is_refused() -> None:
    with pytest.raises(ValueError, match=r"set workload\.trace to FILE"):
        layer_selections(layer("recorded"), SHAPE)
    with pytest.raises(ValueError, match="no router"):
        layer_selections(WorkloadSpec(phase="decode", prompt=1, steps=1), SHAPE)


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
