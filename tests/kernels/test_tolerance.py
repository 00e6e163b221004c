"""The check is on trial: what is wrong must be called wrong."""

import numpy as np
import pytest

from ktbench import _kernels
from tests.kernels.layers import Batch, Layer, agrees, forward, random_batch, random_layer, reference, widen


@pytest.fixture
def layer(rng) -> Layer:
    return random_layer(rng, 8, 128, 64)


@pytest.fixture
def batch(rng, layer) -> Batch:
    return random_batch(rng, layer, 12, 4)


def outputs_of_mutants(layer: Layer, batch: Batch, pool: _kernels.ThreadPool, rng: np.random.Generator):
    moe = _kernels.MoE(layer.packed(), pool)
    right = forward(moe, batch, isa="reference")
    one_dropped = batch.gates_tk.copy()
    one_dropped[5, 2] = 0
    two_swapped = batch.ids_tk.copy()
    two_swapped[7, [0, 1]] = [0, 1]
    gates_swapped = batch.gates_tk[:, ::-1].copy()
    yield "zeros", np.zeros_like(right)
    yield "stale", forward(moe, random_batch(rng, layer, 12, 4), isa="reference")
    yield "NaN", np.full_like(right, 0x7FC0)
    yield "one expert dropped", forward(moe, Batch(batch.x_th, batch.ids_tk, one_dropped), isa="reference")
    yield "two experts swapped", forward(moe, Batch(batch.x_th, two_swapped, batch.gates_tk), isa="reference")
    yield "gate weights reversed", forward(moe, Batch(batch.x_th, batch.ids_tk, gates_swapped), isa="reference")
    yield "rows swapped", right[::-1].copy()
    yield "one element off by 3 %", _with_one_element_off(right)


def _with_one_element_off(right):
    off = right.copy()
    largest = np.unravel_index(np.abs(widen(right)).argmax(), right.shape)
    off[largest] += 4  # of 128 steps per octave
    return off


def test_every_mutant_is_rejected(layer, batch, pool, rng):
    expected = reference(layer, batch)
    accepted = [name for name, out in outputs_of_mutants(layer, batch, pool, rng) if agrees(out, expected)]
    assert not accepted


def test_the_right_output_is_accepted(layer, batch, pool):
    assert agrees(forward(_kernels.MoE(layer.packed(), pool), batch, isa="reference"), reference(layer, batch))
