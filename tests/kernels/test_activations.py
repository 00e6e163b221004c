"""Gated activations and biases of experts: computed as float64 arithmetic does, refused, read back and copied."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from transformers import GptOssConfig
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts

from ktbench import _kernels
from tests.kernels.arithmetic import INT8_TOLERANCE, Exact, agrees, cuts_between, int8_of, int8_of_bf16, relative_error
from tests.kernels.layers import (
    Batch,
    Bits,
    Floats,
    Layer,
    forward,
    forward_proven,
    random_batch,
    random_layer,
    stored,
    to_bf16,
    widen,
)
from tests.kernels.tables import PRECISIONS, kernels, sizes_of, unit_of


@pytest.mark.parametrize("domains", [1, 2])
def test_what_was_written_is_read(domains, pool, rng):
    layer = random_layer(rng, 2, 70, 140)
    biases = random_biases(rng, layer)
    packed = packed_with(layer, "int8", GPT_OSS, biases, pool, domains)
    assert {name: getattr(packed, name) for name in asdict(GPT_OSS)} == asdict(GPT_OSS)
    assert packed.biases and packed.nbytes > packed_with(layer, "int8", GPT_OSS, [], pool, domains).nbytes
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


@dataclass(frozen=True)
class Glu:
    activation: str = "silu"
    alpha: float = 1.0
    limit: float | None = None
    offset: float = 0.0

    @property
    def bound(self) -> float:
        return np.inf if self.limit is None else self.limit

    def act(self, g: Floats) -> Floats:
        if self.activation == "gelu_tanh":
            return 0.5 * g * (1 + np.tanh(np.sqrt(2 / np.pi) * (g + 0.044715 * g**3)))
        return g / (1 + np.exp(-np.clip(self.alpha * g, -700, None)))


# The limits cut off a third of what standard normal gates and ups are.
PLAIN, GPT_OSS = Glu(), Glu(alpha=1.702, limit=0.9, offset=1.0)
GLUS = [PLAIN, GPT_OSS, Glu(limit=1.1), Glu("gelu_tanh"), Glu("gelu_tanh", limit=0.8, offset=0.5)]

Biases = tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]  # gate, up [I], down [H]


def random_biases(rng: np.random.Generator, layer: Layer) -> list[Biases]:
    experts, intermediate, hidden = layer.gate_eih.shape
    return [
        tuple(rng.standard_normal(n).astype(np.float32) for n in (intermediate, intermediate, hidden))
        for _ in range(experts)
    ]


def packed_with(
    layer: Layer,
    precision: str,
    glu: Glu,
    biases: Sequence[Biases],
    team: _kernels.Team | None = None,
    domains: int = 1,
) -> _kernels.PackedExperts:
    """No biases at all: experts without."""
    experts, intermediate, hidden = layer.gate_eih.shape
    packed = _kernels.PackedExperts(
        experts, hidden, intermediate, precision, domains, **asdict(glu), biases=bool(biases)
    )
    for e in range(experts):
        names = dict(zip(("gate_bias", "up_bias", "down_bias"), biases[e], strict=True)) if biases else {}
        packed.write_expert(e, layer.gate_eih[e], layer.up_eih[e], layer.down_ehi[e], team, **names)
    return packed


def by_float64(
    packed: _kernels.PackedExperts, glu: Glu, biases: Sequence[Biases], batch: Batch, cuts: Sequence[int] = ()
) -> Exact:
    """Weights as stored; activations int8 where the kernels have them so, each domain's part of h by itself."""
    bf16 = packed.precision == "bf16"
    x_th = widen(batch.x_th) if bf16 else int8_of(widen(batch.x_th))
    out_th, size_th = np.zeros_like(x_th), np.zeros_like(x_th)
    for e, (gate, up, down) in enumerate(stored(packed)):
        to_gate, to_up, to_down = (b.astype(np.float64) for b in biases[e]) if biases else (0.0, 0.0, 0.0)
        weight_t1 = np.where(batch.ids_tk == e, batch.gates_tk.astype(np.float64), 0).sum(1)[:, None]
        act = glu.act(np.minimum(x_th @ gate.T + to_gate, glu.bound))
        factor = np.clip(x_th @ up.T + to_up, -glu.bound, glu.bound) + glu.offset
        h = act * factor if bf16 else int8_by_domain(act * factor, cuts)
        gate_terms = np.abs(x_th) @ np.abs(gate.T) + np.abs(to_gate)
        up_terms = np.abs(x_th) @ np.abs(up.T) + np.abs(to_up) + glu.offset
        # Float32 sums that nearly cancel are as wrong as their terms are large.
        h_size = np.abs(h) + 2**-10 * (gate_terms * np.abs(factor) + np.abs(act) * up_terms)
        out_th += weight_t1 * (h @ down.T + to_down)
        size_th += np.abs(weight_t1) * (h_size @ np.abs(down.T) + np.abs(to_down))
    return Exact(out_th, size_th)


def int8_by_domain(h: Floats, cuts: Sequence[int]) -> Floats:
    return np.concatenate([int8_of_bf16(part) for part in np.split(h, list(cuts), axis=1)], axis=1)


def right(out: Bits, packed: _kernels.PackedExperts, expected: Exact) -> bool:
    if packed.precision == "bf16":
        return agrees(out, expected)
    return relative_error(out, expected.out_th) <= INT8_TOLERANCE


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
