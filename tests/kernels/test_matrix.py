"""Weights of linear layers are stored as they were written, wherever they were."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ktbench import _kernels
from tests.kernels.layers import Bits, to_bf16
from tests.kernels.tables import PRECISIONS, sizes_of


def random_bits(rng: np.random.Generator, *shape: int) -> Bits:
    return to_bf16(rng.standard_normal(shape))


def packed(weight: Bits, precision: str, team: _kernels.Team | None = None) -> _kernels.PackedMatrix:
    matrix = _kernels.PackedMatrix(*weight.shape, precision)
    matrix.write(weight, team=team)
    return matrix


@pytest.mark.parametrize("precision", PRECISIONS)
def test_several_matrices_may_be_written_into_one(precision, pool, rng):
    """As q, k and v projections are: one after the other, in any order, at multiples of 16 rows."""
    (columns,) = sizes_of(precision, 72)
    parts = [random_bits(rng, rows, columns) for rows in (64, 16, 21)]
    together = _kernels.PackedMatrix(101, columns, precision)
    for part, first in ((parts[2], 80), (parts[0], 0), (parts[1], 64)):
        together.write(part, first, pool)
    assert (together.read(pool) == np.concatenate([packed(part, precision).read() for part in parts])).all()


@settings(max_examples=30, deadline=None)
@given(rows=st.integers(1, 90), columns=st.integers(1, 140), pooled=st.booleans(), seed=st.integers(0, 99))
def test_bf16_comes_back_bit_for_bit(pool, rows, columns, pooled, seed):
    bits = np.random.default_rng(seed).integers(0, 2**16, (rows, columns + 3), np.uint16)
    team = pool if pooled else None
    matrix = packed(bits[:, :columns], "bf16", team)  # rows lie apart
    assert (matrix.read(team).view(np.uint32) == bits[:, :columns].astype(np.uint32) << 16).all()


def test_weights_are_stored_as_experts_are(rng):
    """The same strips: what quantising costs is tested there."""
    weight, small = random_bits(rng, 64, 96), random_bits(rng, 96, 64)
    for precision in PRECISIONS:
        experts = _kernels.PackedExperts(1, 64, 96, precision)
        experts.write_expert(0, small, small, weight)
        assert (experts.read_expert(0)[2] == packed(weight, precision).read()).all()


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_matrix_that_was_not_written_is_zero(precision, pool, rng):
    (columns,) = sizes_of(precision, 40)
    matrix, out = _kernels.PackedMatrix(20, columns, precision), np.full((2, 20), 0x7FC0, np.uint16)
    assert not matrix.read().any()
    _kernels.Linear(matrix, pool).forward(random_bits(rng, 2, columns), out)
    assert not out.any()


def test_properties_are_what_was_asked():
    matrix = _kernels.PackedMatrix(20, 70, "int4_g64")
    assert (matrix.rows, matrix.columns, matrix.precision) == (20, 70, "int4_g64")
    assert matrix.nbytes == 2 * (128 + 64 + 128 * 16 // 2)  # two strips: scales, groups' scales, k padded to 128


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 64), "rows=0 must be at least 1"),
        ((32, -1), "columns=-1 must be at least 1"),
        ((32, 64, "int3"), f"precision 'int3': allowed are {', '.join(PRECISIONS)}"),
        ((32, 65, "q8_0"), "columns=65 must be a multiple of 32"),
    ],
)
def test_a_wrong_matrix_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        _kernels.PackedMatrix(*arguments)


@pytest.mark.parametrize(
    ("rows", "first", "message"),
    [
        (32, 72, r"rows 72\.\.103 are not all in 0\.\.99"),
        (16, -16, r"rows -16\.\.-1 are not all in 0\.\.99"),
        (16, 8, r"rows 8\.\.23 must begin at a multiple of 16 and end before one or with the matrix"),
        (20, 16, r"rows 16\.\.35 must begin at a multiple of 16 and end before one or with the matrix"),
    ],
)
def test_rows_that_do_not_fit_are_refused(rows, first, message):
    with pytest.raises(ValueError, match=message):
        _kernels.PackedMatrix(100, 8).write(np.zeros((rows, 8), np.uint16), first)


def test_a_wrong_weight_is_named():
    matrix = _kernels.PackedMatrix(32, 64)
    with pytest.raises(ValueError, match=r"weight must have shape \[any, 64\], not \[32, 63\]"):
        matrix.write(np.zeros((32, 63), np.uint16))
    with pytest.raises(TypeError, match="weight must be uint16, not float32"):
        matrix.write(np.zeros((32, 64), np.float32))
