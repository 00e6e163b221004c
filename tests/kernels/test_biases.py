"""What an expert's activation and biases may be, how they are given, read back and copied."""

from dataclasses import asdict

import numpy as np
import pytest

from ktbench import _kernels
from tests.kernels.gated import GPT_OSS, packed_with, random_biases
from tests.kernels.layers import random_layer


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
