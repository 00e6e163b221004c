"""NaN, infinity and extreme magnitudes in: they come out where they belong, and nowhere else."""

import numpy as np
import pytest

from ktbench import _kernels
from tests.kernels.layers import (
    GRANTED,
    Batch,
    agrees,
    forward_proven,
    random_batch,
    random_layer,
    reference,
    to_bf16,
    widen,
)


@pytest.mark.parametrize("isa", GRANTED)
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("tokens", [1, 9, 40])
def test_a_poisoned_token_spoils_itself_alone(isa, poison, tokens, pool, rng):
    layer = random_layer(rng, 3, 50, 40)  # ragged: padding must not spread the poison either
    clean = random_batch(rng, layer, tokens, 2)
    x = clean.x_th.copy()
    x[tokens // 2, 7] = to_bf16(poison)
    moe = _kernels.MoE(layer.packed(), pool)
    poisoned_out = forward_proven(moe, Batch(x, clean.ids_tk, clean.gates_tk), isa)
    clean_out = forward_proven(moe, clean, isa)
    others = np.arange(tokens) != tokens // 2
    assert not np.isfinite(widen(poisoned_out[tokens // 2])).any()
    assert (poisoned_out[others] == clean_out[others]).all()


@pytest.mark.parametrize("isa", GRANTED)
def test_infinite_product_stays_infinite_beside_padding(isa, pool):
    """One intermediate column, gate and up 1, x = inf: h = inf, and 31 columns of padding must not turn it to NaN."""
    one = to_bf16(np.ones((1, 1)))
    packed = _kernels.PackedExperts(1, 1, 1)
    packed.write_expert(0, one, one, one)
    batch = Batch(to_bf16(np.array([[np.inf]])), np.zeros((1, 1), np.int64), np.ones((1, 1), np.float32))
    assert widen(forward_proven(_kernels.MoE(packed, pool), batch, isa)) == np.inf


@pytest.mark.parametrize("isa", GRANTED)
@pytest.mark.parametrize("magnitude", [1e-30, 1e-6, 1e6, 1e15])
def test_extreme_magnitudes_stay_right(isa, magnitude, pool, rng):
    layer = random_layer(rng, 2, 64, 64)
    batch = random_batch(rng, layer, 4, 1)
    batch = Batch(to_bf16(widen(batch.x_th) * magnitude), batch.ids_tk, batch.gates_tk)
    out = forward_proven(_kernels.MoE(layer.packed(), pool), batch, isa)
    assert agrees(out, reference(layer, batch))


@pytest.mark.parametrize("isa", GRANTED)
def test_overflow_shows(isa, pool, rng):
    layer = random_layer(rng, 2, 64, 64)
    batch = random_batch(rng, layer, 4, 1)
    batch = Batch(to_bf16(widen(batch.x_th) * 1e30), batch.ids_tk, batch.gates_tk)
    out = forward_proven(_kernels.MoE(layer.packed(), pool), batch, isa)
    assert not np.isfinite(widen(out)).any()


@pytest.mark.parametrize("isa", GRANTED)
@pytest.mark.parametrize("gate", [-1e4, -100.0, -88.5, -20.0, 20.0, 88.5, 1e4])
def test_silu_at_both_ends(isa, gate, pool):
    packed = _kernels.PackedExperts(1, 1, 1)
    one = to_bf16(np.ones((1, 1)))
    packed.write_expert(0, to_bf16(np.array([[gate]])), one, one)
    batch = Batch(one, np.zeros((1, 1), np.int64), np.ones((1, 1), np.float32))
    out = float(widen(forward_proven(_kernels.MoE(packed, pool), batch, isa))[0, 0])
    assert out == pytest.approx(gate if gate > 0 else gate * np.exp(gate), rel=2**-6, abs=1e-30)
