"""Weights come back from their tiles as they went in."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ktbench import _kernels


def random_bits(rng, *shape):
    return rng.integers(0, 2**16, shape, np.uint16)


@settings(max_examples=40, deadline=None)
@given(hidden=st.integers(1, 140), intermediate=st.integers(1, 140), pooled=st.booleans(), seed=st.integers(0, 99))
def test_round_trip(pool, hidden, intermediate, pooled, seed):
    rng = np.random.default_rng(seed)
    packed = _kernels.PackedExperts(2, hidden, intermediate)
    shapes = [(intermediate, hidden), (intermediate, hidden), (hidden, intermediate)]
    written = [[random_bits(rng, *shape) for shape in shapes] for _ in range(2)]
    for index, matrices in enumerate(written):
        packed.write_expert(index, *matrices, pool if pooled else None)
    for index, matrices in enumerate(written):
        for was, wrote in zip(packed.read_expert(index), matrices, strict=True):
            assert (was == wrote).all()


def test_stacked_gate_up_may_be_sliced(rng):
    """As Transformers stores it: [2 * intermediate, hidden], and rows wider than the matrix."""
    stacked = random_bits(rng, 2 * 48, 100)[:, :80]
    down = random_bits(rng, 80, 48)
    packed = _kernels.PackedExperts(1, 80, 48)
    packed.write_expert(0, stacked[:48], stacked[48:], down)
    gate, up, _ = packed.read_expert(0)
    assert (gate == stacked[:48]).all() and (up == stacked[48:]).all()


def test_nbytes_is_the_padded_size():
    assert _kernels.PackedExperts(3, 64, 32).nbytes == 3 * 3 * 64 * 32 * 2
    assert _kernels.PackedExperts(1, 33, 17).nbytes == 3 * 64 * 32 * 2


@pytest.mark.parametrize("sizes", [(0, 32, 32), (1, 0, 32), (1, 32, -1)])
def test_sizes_below_one_are_refused(sizes):
    with pytest.raises(ValueError, match="must be at least 1"):
        _kernels.PackedExperts(*sizes)


def test_columns_that_lie_apart_are_refused(rng):
    packed = _kernels.PackedExperts(1, 32, 32)
    square = random_bits(rng, 32, 32)
    with pytest.raises(ValueError, match="up must have contiguous rows"):
        packed.write_expert(0, square, square.T, square)


def test_an_expert_out_of_range_is_named(rng):
    packed = _kernels.PackedExperts(2, 32, 32)
    square = random_bits(rng, 32, 32)
    with pytest.raises(IndexError, match=r"expert 2 is not in 0\.\.1"):
        packed.write_expert(2, square, square, square)
