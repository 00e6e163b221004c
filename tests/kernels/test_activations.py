"""Every gated activation, with biases and without: against float64 on what is stored, and against Transformers."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import GptOssConfig
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts

from ktbench import _kernels
from tests.kernels.arithmetic import cuts_between, relative_error
from tests.kernels.gated import GLUS, GPT_OSS, PLAIN, Biases, Glu, by_float64, packed_with, random_biases, right
from tests.kernels.layers import Batch, Layer, forward, forward_proven, random_batch, random_layer, to_bf16, widen
from tests.kernels.tables import PRECISIONS, kernels, sizes_of, unit_of


@pytest.mark.parametrize(("precision", "isa"), kernels())
@pytest.mark.parametrize("with_biases", [False, True], ids=["no-biases", "biases"])
@pytest.mark.parametrize("glu", GLUS, ids=str)
def test_every_activation_agrees_with_float64(precision, isa, with_biases, glu, pool, rng):
    layer = random_layer(rng, 3, *sizes_of(precision, 100, 72))
    biases = random_biases(rng, layer) if with_biases else []
    packed = packed_with(layer, precision, glu, biases, pool)
    moe = _kernels.MoE(packed, pool)
    for tokens in (1, 7, 40):
        batch = random_batch(rng, layer, tokens, 2)
        out = forward_proven(moe, batch, isa)
        assert right(out, packed, by_float64(packed, glu, biases, batch)), f"{tokens} tokens"


SHAPES = st.fixed_dictionaries(
    {
        "experts": st.integers(1, 4),
        "hidden": st.one_of(st.integers(1, 80), st.sampled_from([160, 320])),
        "rest": st.integers(1, 100),  # of the intermediate size, beyond what each domain needs
        "domains": st.integers(1, 2),
        "tokens": st.one_of(st.integers(1, 9), st.sampled_from([17, 33])),
        "per_token": st.integers(1, 5),
        "numa": st.booleans(),
        "dynamic": st.booleans(),
        "seed": st.integers(0, 2**32 - 1),
    }
)


@pytest.mark.parametrize(("precision", "isa"), kernels())
@settings(max_examples=10, deadline=None)
@given(shape=SHAPES, glu=st.sampled_from(GLUS), with_biases=st.booleans())
def test_any_shape_and_split_agrees_with_float64(precision, isa, pool, shape, glu, with_biases):
    rng, domains = np.random.default_rng(shape["seed"]), shape["domains"]
    unit = unit_of(precision)
    hidden, intermediate = sizes_of(precision, shape["hidden"], (domains - 1) * unit + shape["rest"])
    layer = random_layer(rng, shape["experts"], hidden, intermediate)
    batch = random_batch(rng, layer, shape["tokens"], shape["per_token"])
    biases = random_biases(rng, layer) if with_biases else []
    packed = packed_with(layer, precision, glu, biases, pool, domains)
    out = forward_proven(_kernels.MoE(packed, pool), batch, isa, numa=shape["numa"], dynamic=shape["dynamic"])
    assert right(out, packed, by_float64(packed, glu, biases, batch, cuts_between(domains, intermediate, unit)))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_what_is_wrong_is_rejected(precision, pool, rng):
    layer = random_layer(rng, 4, 96, 64)
    biases, batch = random_biases(rng, layer), random_batch(rng, layer, 12, 3)
    packed = packed_with(layer, precision, GPT_OSS, biases)
    out = forward(_kernels.MoE(packed, pool), batch, isa="reference")
    assert right(out, packed, by_float64(packed, GPT_OSS, biases, batch))
    for wrong in (
        replace(GPT_OSS, alpha=1.6),
        replace(GPT_OSS, limit=None),
        replace(GPT_OSS, limit=1.0),
        replace(GPT_OSS, offset=0.0),
        replace(GPT_OSS, activation="gelu_tanh"),
    ):
        assert not right(out, packed, by_float64(packed, wrong, biases, batch)), wrong
    for dropped in range(3):
        fewer = [tuple(b * (i != dropped) for i, b in enumerate(of_expert)) for of_expert in biases]
        assert not right(out, packed, by_float64(packed, GPT_OSS, fewer, batch)), f"bias {dropped} dropped"


EDGES = np.array([-1e30, -40.0, -7.5, -7.0, -6.5, -0.5, 0.0, 0.5, 6.5, 7.0, 7.5, 40.0, 1e30])


@pytest.mark.parametrize(("precision", "isa"), kernels("bf16"))
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_gates_are_cut_off_above_and_ups_on_both_sides(precision, isa, activation, pool):
    """Weights of zero leave the biases: h of every pair of edges, brought out column by column."""
    gates, ups = (pairs.ravel() for pairs in np.meshgrid(EDGES, EDGES))
    n, glu = gates.size, Glu(activation, limit=7.0, offset=1.0)
    zeros = to_bf16(np.zeros((1, n, n)))
    biases = [(gates.astype(np.float32), ups.astype(np.float32), np.zeros(n, np.float32))]
    packed = packed_with(Layer(zeros, zeros, to_bf16(np.eye(n))[None]), precision, glu, biases)
    batch = Batch(to_bf16(np.ones((1, n))), np.zeros((1, 1), np.int64), np.ones((1, 1), np.float32))
    out = widen(forward_proven(_kernels.MoE(packed, pool), batch, isa))[0]
    expected = glu.act(np.minimum(gates, 7.0)) * (np.clip(ups, -7.0, 7.0) + 1)
    assert out == pytest.approx(expected, rel=2**-8, abs=1e-6)
    by_up, beyond, below = out.reshape(len(EDGES), len(EDGES)), EDGES >= 7, EDGES <= -7
    assert (by_up[beyond] == by_up[EDGES == 7]).all() and (by_up[below] == by_up[EDGES == -7]).all()
    assert (by_up[:, beyond] == by_up[:, EDGES == 7]).all()


@pytest.mark.parametrize(("precision", "isa"), kernels())
def test_a_limit_hides_no_nan(precision, isa, pool, rng):
    layer = random_layer(rng, 2, 64, 64)
    packed = packed_with(layer, precision, GPT_OSS, random_biases(rng, layer))
    moe, batch = _kernels.MoE(packed, pool), random_batch(rng, layer, 6, 1)
    clean, x = forward(moe, batch, isa=isa), batch.x_th.copy()
    x[2, 5] = to_bf16(np.nan)
    out = forward_proven(moe, Batch(x, batch.ids_tk, batch.gates_tk), isa)
    assert np.isnan(widen(out[2])).all()
    assert (np.delete(out, 2, 0) == np.delete(clean, 2, 0)).all()


@pytest.mark.parametrize(("precision", "isa"), kernels())
def test_an_expert_named_by_nobody_adds_no_bias(precision, isa, pool, rng):
    layer = random_layer(rng, 2, 64, 64)
    biases, batch = random_biases(rng, layer), random_batch(rng, layer, 5, 2)
    packed = packed_with(layer, precision, GPT_OSS, biases)
    ids_tk = batch.ids_tk.copy()
    ids_tk[1], ids_tk[3, 0] = -1, -1
    skipped = Batch(batch.x_th, ids_tk, batch.gates_tk)
    out = forward_proven(_kernels.MoE(packed, pool), skipped, isa)
    assert (widen(out[1]) == 0).all()
    assert right(out, packed, by_float64(packed, GPT_OSS, biases, skipped))


def test_stating_plain_swiglu_changes_no_bit(pool, rng):
    layer = random_layer(rng, 3, 100, 72)
    batch = random_batch(rng, layer, 9, 2)
    stated, unstated = packed_with(layer, "bf16", PLAIN, []), layer.packed("bf16")
    for isa in ("reference", "amx_emulated"):
        outs = [forward(_kernels.MoE(packed, pool), batch, isa=isa) for packed in (stated, unstated)]
        assert (outs[0] == outs[1]).all()


# Of symmetric grids on Gaussian weights (see test_forward.py); the clamp and the biases make it less.
ROUNDING = {
    "bf16": 0.005,
    "int8": 0.03,
    "int4_g32": 0.155,
    "int4_g64": 0.17,
    "int4_g128": 0.18,
    "q8_0": 0.03,
    "q4_0": 0.16,
}


def gpt_oss(rng: np.random.Generator, layer: Layer, biases: Sequence[Biases]) -> GptOssExperts:
    """The module of Transformers: [in, out] matrices, gate and up in turns."""
    experts, intermediate, hidden = layer.gate_eih.shape
    config = GptOssConfig(hidden_size=hidden, intermediate_size=intermediate, num_local_experts=experts)
    config._experts_implementation = "eager"
    module = GptOssExperts(config)
    gate_up = np.stack([widen(layer.gate_eih), widen(layer.up_eih)], 2).reshape(experts, 2 * intermediate, hidden)
    with torch.no_grad():
        module.gate_up_proj.copy_(torch.from_numpy(gate_up).mT)
        module.down_proj.copy_(torch.from_numpy(widen(layer.down_ehi)).mT)
        module.gate_up_proj_bias.copy_(torch.from_numpy(np.stack([np.stack(b[:2], 1).ravel() for b in biases])))
        module.down_proj_bias.copy_(torch.from_numpy(np.stack([b[2] for b in biases])))
    return module


@pytest.mark.parametrize(("precision", "isa"), kernels())
def test_it_is_gpt_oss_of_transformers(precision, isa, pool, rng):
    layer = random_layer(rng, 4, 256, 128)
    biases, batch = random_biases(rng, layer), random_batch(rng, layer, 24, 4)
    batch = Batch(to_bf16(4 * widen(batch.x_th)), batch.ids_tk, batch.gates_tk)  # one in twelve beyond the limit of 7
    module = gpt_oss(rng, layer, biases)
    with torch.no_grad():
        hidden, ids, gates = (torch.from_numpy(a) for a in (widen(batch.x_th), batch.ids_tk, batch.gates_tk))
        expected = module(hidden.float(), ids, gates).numpy().astype(np.float64)
    errors = {}
    for limit in (7.0, None):
        packed = packed_with(layer, precision, replace(GPT_OSS, limit=limit), biases)
        errors[limit] = relative_error(forward_proven(_kernels.MoE(packed, pool), batch, isa), expected)
    assert errors[7.0] <= ROUNDING[precision] < errors[None]
