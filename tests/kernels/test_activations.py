"""Gated activations and biases of experts: computed as float64 arithmetic does, refused, read back and copied."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import cache
from itertools import product

import numpy as np
import pytest
import torch
from transformers import GptOssConfig
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts

from ktbench import _kernels
from tests.kernels.arithmetic import Truth, accepts, relative_error
from tests.kernels.layers import (
    GLUS,
    GPT_OSS,
    PLAIN,
    Batch,
    Biases,
    Glu,
    Layer,
    forward,
    forward_proven,
    random_batch,
    random_biases,
    random_layer,
    stored,
    to_bf16,
    widen,
)
from tests.kernels.tables import EXPECTED, PRECISIONS, few_kernels, kernels, sizes_of


@pytest.mark.parametrize("domains", [1, 2])
def test_what_was_written_is_read(domains, pool, rng):
    layer = random_layer(rng, 2, 70, 140)
    biases = random_biases(rng, layer)
    packed = layer.packed("int8", pool, domains, GPT_OSS, biases)
    for experts, glu in ((packed, GPT_OSS), (_kernels.PackedExperts(1, 8, 8), PLAIN)):
        assert {name: getattr(experts, name) for name in asdict(glu)} == asdict(glu)
    assert packed.biases and packed.nbytes > layer.packed("int8", pool, domains, GPT_OSS).nbytes
    for e in range(2):
        assert all((was == wrote).all() for was, wrote in zip(packed.read_biases(e), biases[e], strict=True))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"activation": "relu"}, "activation 'relu': allowed are silu, gelu_tanh"),
        ({"alpha": 0.0}, "alpha=0.0.* must be positive and finite"),
        ({"alpha": np.nan}, "alpha=nan must be positive and finite"),
        ({"alpha": np.inf}, "alpha=inf must be positive and finite"),
        ({"alpha": 1.702, "activation": "gelu_tanh"}, "alpha=1.702.* is of silu: gelu_tanh takes 1 alone"),
        ({"limit": 0.0}, "limit=0.0.* must be positive"),
        ({"limit": np.nan}, "limit=nan must be positive"),
        ({"offset": np.inf}, "offset=inf must be finite"),
    ],
)
def test_what_no_expert_computes_is_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        _kernels.PackedExperts(1, 8, 8, **wrong)


@pytest.fixture
def matrices(rng):
    layer = random_layer(rng, 1, 8, 6)
    return layer.gate_eih[0], layer.up_eih[0], layer.down_ehi[0]


BIASES = {name: np.ones(n, np.float32) for name, n in (("gate_bias", 6), ("up_bias", 6), ("down_bias", 8))}


@pytest.mark.parametrize("name", BIASES)
def test_biases_are_given_if_and_only_if_there_are_any(matrices, name):
    without, with_them = (_kernels.PackedExperts(1, 8, 6, biases=biases) for biases in (False, True))
    with pytest.raises(ValueError, match="without biases take none of gate_bias, up_bias, down_bias"):
        without.write_expert(0, *matrices, **{name: BIASES[name]})
    with pytest.raises(ValueError, match="with biases need all of gate_bias, up_bias, down_bias"):
        with_them.write_expert(0, *matrices, **{**BIASES, name: None})


@pytest.mark.parametrize("name", BIASES)
def test_biases_of_another_kind_are_refused(matrices, name):
    packed, n = _kernels.PackedExperts(1, 8, 6, biases=True), BIASES[name].size
    for wrong, error, message in (
        (np.ones(n), TypeError, f"{name} must be float32, not float64"),
        (np.ones(1, np.float32), ValueError, rf"{name} must have shape \[{n}\], not \[1\]"),
        (np.ones((n, 1), np.float32), ValueError, rf"{name} must have shape \[{n}\], not \[{n}, 1\]"),
        (np.ones(2 * n, np.float32)[::2], ValueError, f"{name} must be contiguous"),
    ):
        with pytest.raises(error, match=message):
            packed.write_expert(0, *matrices, **{**BIASES, name: wrong})


def test_only_biases_that_are_there_are_read():
    with pytest.raises(ValueError, match="the experts have no biases"):
        _kernels.PackedExperts(1, 8, 6).read_biases(0)
    with pytest.raises(IndexError, match=r"expert 1 is not in 0\.\.0"):
        _kernels.PackedExperts(1, 8, 6, biases=True).read_biases(1)


@cache
def of_every_activation(precision):
    """Packed experts of each, and what is right for batches of some tokens."""
    rng = np.random.default_rng(20251013)
    layer = random_layer(rng, 3, *sizes_of(precision, 100, 72))
    made = []
    for glu, biases in product(GLUS, ([], random_biases(rng, layer))):
        packed = layer.packed(precision, glu=glu, biases=biases)
        batches, experts = (random_batch(rng, layer, tokens, 2) for tokens in (1, 7, 40)), stored(packed)
        made.append((packed, [Truth(precision, experts, batch, glu=glu, biases=biases) for batch in batches]))
    return made


@pytest.mark.parametrize(("precision", "isa"), few_kernels())
def test_every_activation_agrees_with_float64(precision, isa, pool):
    for packed, truths in of_every_activation(precision):
        moe = _kernels.MoE(packed, pool)
        for truth in truths:
            right = truth.accepts(forward_proven(moe, truth.batch, isa), isa)
            assert right, f"{len(truth.batch.x_th)} tokens, {truth.glu}, {len(truth.biases)} biases"


@pytest.mark.parametrize("precision", PRECISIONS)
def test_what_is_wrong_is_rejected(precision, pool, rng):
    layer = random_layer(rng, 4, 96, 64)
    biases, batch = random_biases(rng, layer), random_batch(rng, layer, 12, 3)
    packed = layer.packed(precision, glu=GPT_OSS, biases=biases)
    out, experts = forward(_kernels.MoE(packed, pool), batch, isa="reference"), stored(packed)
    assert accepts(out, precision, experts, batch, glu=GPT_OSS, biases=biases)
    for wrong in (
        replace(GPT_OSS, alpha=1.6),
        replace(GPT_OSS, limit=None),
        replace(GPT_OSS, limit=1.0),
        replace(GPT_OSS, offset=0.0),
        replace(GPT_OSS, activation="gelu_tanh"),
    ):
        assert not accepts(out, precision, experts, batch, glu=wrong, biases=biases), wrong
    for dropped in range(3):
        fewer = [tuple(b * (i != dropped) for i, b in enumerate(of_expert)) for of_expert in biases]
        assert not accepts(out, precision, experts, batch, glu=GPT_OSS, biases=fewer), f"bias {dropped} dropped"


EDGES = np.array([-1e30, -40.0, -7.5, -7.0, -6.5, -0.5, 0.0, 0.5, 6.5, 7.0, 7.5, 40.0, 1e30])


@pytest.mark.parametrize(("precision", "isa"), kernels("bf16"))
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_gates_are_cut_off_above_and_ups_on_both_sides(precision, isa, activation, pool):
    """Weights of zero leave the biases: h of every pair of edges, brought out column by column."""
    gates, ups = (pairs.ravel() for pairs in np.meshgrid(EDGES, EDGES))
    n, glu = gates.size, Glu(activation, limit=7.0, offset=1.0)
    zeros = to_bf16(np.zeros((1, n, n)))
    biases = [(gates.astype(np.float32), ups.astype(np.float32), np.zeros(n, np.float32))]
    packed = Layer(zeros, zeros, to_bf16(np.eye(n))[None]).packed(precision, glu=glu, biases=biases)
    batch = Batch(to_bf16(np.ones((1, n))), np.zeros((1, 1), np.int64), np.ones((1, 1), np.float32))
    out = widen(forward_proven(_kernels.MoE(packed, pool), batch, isa))[0]
    expected = glu.act(np.minimum(gates, 7.0)) * (np.clip(ups, -7.0, 7.0) + 1)
    assert out == pytest.approx(expected, rel=2**-8, abs=1e-6)
    by_up, beyond, below = out.reshape(len(EDGES), len(EDGES)), EDGES >= 7, EDGES <= -7
    assert (by_up[beyond] == by_up[EDGES == 7]).all() and (by_up[below] == by_up[EDGES == -7]).all()
    assert (by_up[:, beyond] == by_up[:, EDGES == 7]).all()


@pytest.mark.parametrize(("precision", "isa"), few_kernels())
def test_a_limit_hides_no_nan(precision, isa, pool, rng):
    layer = random_layer(rng, 2, 64, 64)
    packed = layer.packed(precision, glu=GPT_OSS, biases=random_biases(rng, layer))
    moe, batch = _kernels.MoE(packed, pool), random_batch(rng, layer, 6, 1)
    clean, x = forward(moe, batch, isa=isa), batch.x_th.copy()
    x[2, 5] = to_bf16(np.nan)
    out = forward_proven(moe, Batch(x, batch.ids_tk, batch.gates_tk), isa)
    assert np.isnan(widen(out[2])).all()
    assert (np.delete(out, 2, 0) == np.delete(clean, 2, 0)).all()


@pytest.mark.parametrize(("precision", "isa"), few_kernels())
def test_a_masked_slot_adds_no_bias(precision, isa, pool, rng):
    layer = random_layer(rng, 2, 64, 64)
    biases, batch = random_biases(rng, layer), random_batch(rng, layer, 5, 2)
    packed = layer.packed(precision, glu=GPT_OSS, biases=biases)
    ids_tk = batch.ids_tk.copy()
    ids_tk[1], ids_tk[3, 0] = -1, -1
    skipped = Batch(batch.x_th, ids_tk, batch.gates_tk)
    out = forward_proven(_kernels.MoE(packed, pool), skipped, isa)
    assert (widen(out[1]) == 0).all()
    assert accepts(out, precision, stored(packed), skipped, glu=GPT_OSS, biases=biases, isa=isa)


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


@cache
def computed_by_transformers():
    rng = np.random.default_rng(1)
    layer = random_layer(rng, 4, 256, 128)
    biases, batch = random_biases(rng, layer), random_batch(rng, layer, 24, 4)
    batch = Batch(to_bf16(4 * widen(batch.x_th)), batch.ids_tk, batch.gates_tk)  # one in twelve beyond the limit of 7
    module = gpt_oss(rng, layer, biases)
    with torch.no_grad():
        hidden, ids, gates = (torch.from_numpy(a) for a in (widen(batch.x_th), batch.ids_tk, batch.gates_tk))
        return layer, biases, batch, module(hidden.float(), ids, gates).numpy().astype(np.float64)


@pytest.mark.parametrize(("precision", "isa"), few_kernels())
def test_it_is_gpt_oss_of_transformers(precision, isa, pool):
    layer, biases, batch, expected = computed_by_transformers()
    errors = {}
    for limit in (7.0, None):
        packed = layer.packed(precision, glu=replace(GPT_OSS, limit=limit), biases=biases)
        errors[limit] = relative_error(forward_proven(_kernels.MoE(packed, pool), batch, isa), expected)
    assert errors[7.0] <= EXPECTED[precision].gaussian_error < errors[None]
