"""The fused operator against float64, on every ISA that this machine grants, and on emulated tiles."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ktbench import _kernels
from tests.kernels.layers import (
    GRANTED,
    Batch,
    agrees,
    forward,
    forward_proven,
    random_batch,
    random_layer,
    reference,
    relative_error,
)

shapes = st.fixed_dictionaries(
    {
        "experts": st.integers(1, 6),
        "hidden": st.one_of(st.integers(1, 80), st.sampled_from([96, 160, 800])),
        "intermediate": st.one_of(st.integers(1, 80), st.sampled_from([96, 288])),
        "tokens": st.one_of(st.integers(0, 9), st.sampled_from([16, 17, 33, 70])),
        "per_token": st.integers(1, 16),
        "dynamic": st.booleans(),
        "seed": st.integers(0, 2**32 - 1),
    }
)


@pytest.mark.parametrize("isa", GRANTED)
@settings(max_examples=25, deadline=None)
@given(shape=shapes)
def test_any_shape_agrees_with_float64(isa, pool, shape):
    rng = np.random.default_rng(shape["seed"])
    layer = random_layer(rng, shape["experts"], shape["hidden"], shape["intermediate"])
    batch = random_batch(rng, layer, shape["tokens"], shape["per_token"])
    out = forward_proven(_kernels.MoE(layer.packed(pool), pool), batch, isa, dynamic=shape["dynamic"])
    assert agrees(out, reference(layer, batch))


@pytest.mark.parametrize("isa", GRANTED)
@pytest.mark.parametrize("tokens", [1, 2, 3, 4, 5, 6, 7, 8, 12, 13, 31, 32, 48, 65, 129, 257, 300])
def test_all_tokens_on_one_expert_of_many(isa, tokens, pool, rng):
    layer = random_layer(rng, 5, 96, 64)
    batch = random_batch(rng, layer, tokens, 1)
    batch = Batch(batch.x_th, np.full_like(batch.ids_tk, 3), batch.gates_tk)
    out = forward_proven(_kernels.MoE(layer.packed(), pool), batch, isa)
    assert agrees(out, reference(layer, batch))


@pytest.mark.parametrize("isa", GRANTED)
def test_gaussian_error_at_a_real_width(isa, pool, rng):
    layer = random_layer(rng, 4, 1024, 384)
    batch = random_batch(rng, layer, 40, 3)
    out = forward_proven(_kernels.MoE(layer.packed(pool), pool), batch, isa)
    assert relative_error(out, reference(layer, batch)[0]) <= 0.005


@pytest.mark.parametrize("isa", GRANTED)
def test_repeated_ids_add_up(isa, pool, rng):
    layer = random_layer(rng, 3, 64, 32)
    once = random_batch(rng, layer, 5, 1)
    gates = once.gates_tk / 2
    twice = Batch(once.x_th, np.repeat(once.ids_tk, 2, 1), np.repeat(gates, 2, 1))
    moe = _kernels.MoE(layer.packed(), pool)
    assert agrees(forward_proven(moe, twice, isa), reference(layer, once))


def test_output_may_be_the_input(pool, rng):
    layer = random_layer(rng, 4, 64, 64)
    batch = random_batch(rng, layer, 9, 2)
    moe = _kernels.MoE(layer.packed(), pool)
    expected = forward(moe, batch, isa="reference")
    moe.forward(batch.x_th, batch.ids_tk, batch.gates_tk, batch.x_th, isa="reference")
    assert (batch.x_th == expected).all()


@pytest.mark.skipif("amx" not in GRANTED, reason="AMX is not granted here")
def test_emulated_tiles_are_the_real_ones(pool, rng):
    layer = random_layer(rng, 4, 800, 96)
    batch = random_batch(rng, layer, 70, 2)
    moe = _kernels.MoE(layer.packed(), pool)
    real, emulated = forward_proven(moe, batch, "amx"), forward_proven(moe, batch, "amx_emulated")
    assert relative_error(emulated, reference(layer, batch)[0]) <= 0.005
    assert np.abs(real.astype(int) - emulated).max() <= 1  # unit in the last place: the order of float32 sums


@pytest.mark.skipif("amx" not in GRANTED, reason="AMX is not granted here")
def test_both_features_split_by_tokens_per_expert(pool, rng):
    layer = random_layer(rng, 3, 64, 64)
    ids = np.array([[0]] * 4 + [[1]] * 5)
    batch = random_batch(rng, layer, 9, 1)
    batch = Batch(batch.x_th, ids, batch.gates_tk)
    tiles_of_five_tokens = 2 * (64 // 32) * (64 // 16) + 2 * (64 // 32) * (64 // 32)
    moe = _kernels.MoE(layer.packed(), pool)
    assert agrees(forward(moe, batch, avx512=True, amx=True, amx_min_tokens=5), reference(layer, batch))
    counters = moe.counters()
    assert counters["avx512_calls"] > 0 and counters["amx_tiles"] == tiles_of_five_tokens
