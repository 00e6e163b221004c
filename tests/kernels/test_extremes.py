"""NaN, infinity and extreme magnitudes in: they come out where they belong, and nowhere else."""

import numpy as np
import pytest

from ktbench import _kernels
from tests.kernels.arithmetic import accepts
from tests.kernels.layers import Batch, case, forward_proven, random_batch, random_layer, stored, to_bf16, widen
from tests.kernels.tables import BLOCKED, QUANTISED, few_kernels, kernels, quantises_activations, sizes_of


@pytest.mark.parametrize(("precision", "isa"), few_kernels())
def test_a_poisoned_token_spoils_itself_alone(precision, isa, pool):
    """In a ragged layer, whose padding must not spread the poison either."""
    for tokens in (1, 9, 40):
        ragged = case(precision, (3, 50, 40), tokens, 2)
        moe, clean = _kernels.MoE(ragged.packed, pool), ragged.batch
        clean_out = forward_proven(moe, clean, isa)
        others = np.arange(tokens) != tokens // 2
        for poison in (np.nan, np.inf, -np.inf):
            x = clean.x_th.copy()
            x[tokens // 2, 7] = to_bf16(poison)
            out = forward_proven(moe, Batch(x, clean.ids_tk, clean.gates_tk), isa)
            assert not np.isfinite(widen(out[tokens // 2])).any(), f"{poison} in one of {tokens} tokens"
            assert (out[others] == clean_out[others]).all(), f"{poison} in one of {tokens} tokens"


@pytest.mark.parametrize(("precision", "isa"), few_kernels())
@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_a_poisoned_gate_weight_spoils_its_token_alone(precision, isa, poison, pool):
    ragged = case(precision, (3, 50, 40), 9, 2)
    moe, batch = _kernels.MoE(ragged.packed, pool), ragged.batch
    gates = batch.gates_tk.copy()
    gates[4, 1] = poison
    out = forward_proven(moe, Batch(batch.x_th, batch.ids_tk, gates), isa)
    others = np.arange(9) != 4
    assert not np.isfinite(widen(out[4])).any()
    assert (out[others] == forward_proven(moe, batch, isa)[others]).all()


@pytest.mark.parametrize(("precision", "isa"), few_kernels())
@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_poisoned_weights_spoil_their_expert_alone(precision, isa, poison, pool, rng):
    layer = random_layer(rng, 2, 64, 64)
    layer.up_eih[1, 3, [5, 6, 60]] = to_bf16(poison)
    batch = random_batch(rng, layer, 6, 1)
    batch = Batch(batch.x_th, np.array([[0, 1] * 3]).T, batch.gates_tk)
    packed = layer.packed(precision)
    out = forward_proven(_kernels.MoE(packed, pool), batch, isa)
    assert not np.isfinite(widen(out[1::2])).any()
    alone = Batch(batch.x_th[::2], batch.ids_tk[::2], batch.gates_tk[::2])
    with np.errstate(invalid="ignore"):
        experts = stored(packed)
    assert accepts(out[::2], precision, experts, alone, isa=isa)


@pytest.mark.parametrize(("precision", "isa"), kernels("bf16"))
def test_infinite_product_stays_infinite_beside_padding(precision, isa, pool):
    """One intermediate column, gate and up 1, x = inf: h = inf, and 31 columns of padding must not turn it to NaN."""
    one = to_bf16(np.ones((1, 1)))
    packed = _kernels.PackedExperts(1, 1, 1, precision)
    packed.write_expert(0, one, one, one)
    batch = Batch(to_bf16(np.array([[np.inf]])), np.zeros((1, 1), np.int64), np.ones((1, 1), np.float32))
    assert widen(forward_proven(_kernels.MoE(packed, pool), batch, isa)) == np.inf


@pytest.mark.parametrize(("precision", "isa"), few_kernels())
def test_extreme_activations_stay_right(precision, isa, pool):
    """`gate` undoes the magnitude, as far as half scales reach; `up` keeps the output of small ones from zero."""
    plain = case(precision, (2, 64, 64), 4, 1)
    layer = plain.layer
    for magnitude in (1e-4, 1e4) if precision in BLOCKED else (1e-30, 1e-12, 1e-6, 1e6, 1e15):
        gate, up = scaled(layer.gate_eih, 1 / magnitude), scaled(layer.up_eih, 1e3)
        packed = _kernels.PackedExperts(2, 64, 64, precision)
        for e in range(2):
            packed.write_expert(e, gate[e], up[e], layer.down_ehi[e])
        batch = Batch(scaled(plain.batch.x_th, magnitude), plain.batch.ids_tk, plain.batch.gates_tk)
        out = forward_proven(_kernels.MoE(packed, pool), batch, isa)
        assert np.isfinite(widen(out)).all() and out.any(), magnitude
        assert accepts(out, precision, stored(packed), batch, isa=isa), magnitude


def scaled(bits, factor):
    return to_bf16(widen(bits) * factor)


@pytest.mark.parametrize(("precision", "isa"), few_kernels())
def test_overflow_shows(precision, isa, pool):
    plain = case(precision, (2, 64, 64), 4, 1)
    batch = Batch(scaled(plain.batch.x_th, 1e30), plain.batch.ids_tk, plain.batch.gates_tk)
    out = forward_proven(_kernels.MoE(plain.packed, pool), batch, isa)
    assert not np.isfinite(widen(out)).any()


@pytest.mark.parametrize(("precision", "isa"), few_kernels())
def test_a_token_of_zeros_gives_zeros(precision, isa, pool):
    plain = case(precision, (2, 64, 64), 4, 1)
    x = plain.batch.x_th.copy()
    x[2] = 0
    out = forward_proven(_kernels.MoE(plain.packed, pool), Batch(x, plain.batch.ids_tk, plain.batch.gates_tk), isa)
    assert (widen(out[2]) == 0).all() and out[[0, 1, 3]].all(1).all()


@pytest.mark.parametrize(("precision", "isa"), few_kernels(*QUANTISED))
def test_one_outlier_leaves_the_rest_of_its_token_on_the_grid(precision, isa, pool):
    """A hundred times the others: a step of int8 is then nearly as large as they are, and still the model's."""
    plain = case(precision, (2, 64, 64), 4, 1)
    x = plain.batch.x_th.copy()
    x[:, 11] = to_bf16(300.0)
    batch = Batch(x, plain.batch.ids_tk, plain.batch.gates_tk)
    out = forward_proven(_kernels.MoE(plain.packed, pool), batch, isa)
    assert accepts(out, precision, plain.experts, batch, isa=isa)


@pytest.mark.parametrize(("precision", "isa"), few_kernels())
def test_silu_at_both_ends(precision, isa, pool):
    n, one = *sizes_of(precision, 1), np.zeros(sizes_of(precision, 1, 1))
    one[0, 0] = 1
    batch = Batch(to_bf16(one[:1]), np.zeros((1, 1), np.int64), np.ones((1, 1), np.float32))
    for gate in (-1e4, -100.0, -88.5, -20.0, 20.0, 88.5, 1e4):
        packed = _kernels.PackedExperts(1, n, n, precision)
        packed.write_expert(0, to_bf16(gate * one), to_bf16(one), to_bf16(one))
        x, up, down = (matrix[0, 0] for matrix in stored(packed)[0])  # 4 bits know neither 20 nor 1
        if not quantises_activations(precision, isa):
            x = widen(to_bf16(x))
        out = float(widen(forward_proven(_kernels.MoE(packed, pool), batch, isa))[0, 0])
        assert out == pytest.approx((x if x > 0 else x * np.exp(x)) * up * down, rel=2**-6, abs=1e-30), gate
