"""Packed linear layers: stored as they were written, and equal to float64 arithmetic on the weights as stored."""

from collections.abc import Hashable, Iterable
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ktbench import _kernels
from tests.drawing import covering, examples
from tests.kernels.arithmetic import int8_of
from tests.kernels.layers import Bits, Floats, crossover, moved, random_bits, together, widen
from tests.kernels.tables import (
    COUNTERS,
    PRECISIONS,
    few_kernels,
    granted_isas_of,
    isas_of,
    isas_without,
    kernels,
    quantises_activations,
    rounds_weights,
    sizes_of,
)


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


@examples(8)
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


LONGEST = 2**17  # of k, whose products of int8 fit a sum of 32 bits


def met_by_long_rows(tokens: int, precision: str, isa: str) -> Iterable[Hashable]:
    """Every ISA with few and many rows; of AMX, which keeps sums of many rows by pieces of k, every format."""
    return (precision, (tokens, isa), (precision, isa == "amx" and tokens > 1))


@pytest.mark.parametrize(
    ("tokens", "precision", "isa"),
    covering(product((1, 48), kernels("int8", "int4_g32", "int4_g128")), met_by_long_rows),
)
def test_the_longest_rows_are_summed_without_overflow(precision, isa, tokens, pool):
    """Every product of the largest magnitude and of one sign."""
    weight = np.full((17, LONGEST), 0x3F80, np.uint16)
    matrix, out = packed(weight, precision, pool), np.empty((tokens, 17), np.uint16)
    _kernels.Linear(matrix, pool).forward(np.full((tokens, LONGEST), 0x3F80, np.uint16), out, isa=isa)
    assert widen(out) == pytest.approx(np.broadcast_to(matrix.read().sum(1), out.shape), rel=2**-8)


@pytest.mark.parametrize("precision", ["int8", "int4_g32", "int4_g128"])
def test_rows_longer_than_their_sums_hold_are_refused(precision):
    for make, name in (
        (lambda: _kernels.PackedMatrix(1, LONGEST + 1, precision), "columns"),
        (lambda: _kernels.PackedExperts(1, LONGEST + 1, 32, precision), "hidden"),
        (lambda: _kernels.PackedExperts(1, 32, LONGEST + 1, precision), "intermediate"),
    ):
        with pytest.raises(ValueError, match=f"{name}={LONGEST + 1} must be at most {LONGEST}"):
            make()


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_matrix_that_was_not_written_is_zero(precision, pool, rng):
    (columns,) = sizes_of(precision, 40)
    matrix, out = _kernels.PackedMatrix(20, columns, precision), np.full((2, 20), 0x7FC0, np.uint16)
    assert not matrix.read().any()
    _kernels.Linear(matrix, pool).forward(random_bits(rng, 2, columns), out)
    assert not out.any()


def test_properties_are_what_was_requested():
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


SHAPES = st.fixed_dictionaries(
    {
        "rows": st.one_of(st.integers(1, 80), st.sampled_from([160, 330])),
        "columns": st.one_of(st.integers(1, 80), st.sampled_from([128, 320, 1030])),
        "tokens": st.integers(1, 70),
        "biased": st.booleans(),
        "seed": st.integers(0, 2**32 - 1),
    }
)


def random_matrix(rng: np.random.Generator, rows: int, columns: int, precision: str) -> _kernels.PackedMatrix:
    """Its columns rounded up where the precision knows whole blocks only."""
    return packed(random_bits(rng, rows, *sizes_of(precision, columns)), precision)


def forward(linear: _kernels.Linear, x: Bits, rows: int, **options: str) -> Bits:
    """The output, which starts as NaN."""
    out = np.full((len(x), rows), 0x7FC0, np.uint16)
    linear.forward(x, out, **options)
    return out


def forward_proven(linear: _kernels.Linear, x: Bits, rows: int, isa: str) -> Bits:
    """forward() on one ISA, which fails unless that ISA's counter moved and no other's did."""
    before = linear.counters()
    out = forward(linear, x, rows, isa=isa)
    assert moved(before, linear.counters()) == {COUNTERS[isa]}
    return out


def agrees(
    out: Bits, x: Bits, matrix: _kernels.PackedMatrix, bias: Floats | float = 0.0, isa: str = "reference"
) -> bool:
    """Every element within half a step of bf16, the rounding of float32 sums and, on some kernels, of the weights."""
    weight = matrix.read().astype(np.float64)
    integers = quantises_activations(matrix.precision, isa)
    activations = int8_of(widen(x)) if integers else widen(x)
    exact = activations @ weight.T + bias
    size = np.abs(activations) @ np.abs(weight.T) + np.abs(bias)
    step = 2**-8 if rounds_weights(matrix.precision, isa) else 2**-17
    return bool((np.abs(widen(out) - exact) <= 2**-8 * np.abs(exact) + step * size + 1e-34).all())


@pytest.mark.parametrize(("precision", "isa"), kernels())
@examples(4)
@given(shape=SHAPES)
def test_any_shape_agrees_with_float64(precision, isa, pool, shape):
    rng = np.random.default_rng(shape["seed"])
    rows = shape["rows"]
    matrix = random_matrix(rng, rows, shape["columns"], precision)
    x = random_bits(rng, shape["tokens"], matrix.columns)
    bias = rng.standard_normal(rows).astype(np.float32) if shape["biased"] else None
    out = forward_proven(_kernels.Linear(matrix, pool, bias), x, rows, isa)
    assert agrees(out, x, matrix, 0.0 if bias is None else bias.astype(np.float64), isa)


@pytest.mark.parametrize(("precision", "isa"), few_kernels())
def test_blocks_of_tokens_and_wide_tasks(precision, isa, pool, rng):
    """More tokens than one block has, more strips than one task has."""
    matrix = random_matrix(rng, 520, 96, precision)
    linear = _kernels.Linear(matrix, pool)
    for tokens in (256, 257, 300, 520):
        x = random_bits(rng, tokens, 96)
        assert agrees(forward_proven(linear, x, 520, isa), x, matrix, isa=isa), f"{tokens} tokens"


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_check_rejects_what_is_wrong(precision, pool, rng):
    matrix, x = random_matrix(rng, 64, 128, precision), random_bits(rng, 6, 128)
    right = forward(_kernels.Linear(matrix, pool), x, 64, isa="reference")
    one_off = right.copy()
    one_off[np.unravel_index(np.abs(widen(right)).argmax(), right.shape)] += 2
    mutants = [np.zeros_like(right), np.full_like(right, 0x7FC0), right[::-1], np.roll(right, 1, 1), one_off]
    assert agrees(right, x, matrix)
    assert not any(agrees(mutant, x, matrix) for mutant in mutants)


@pytest.mark.parametrize(("precision", "tokens"), covering(product(PRECISIONS, (1, 7, 70, 300))))
def test_the_thread_count_changes_nothing(precision, tokens, cpus, rng):
    """With more threads than there are strips, too."""
    for rows in (16, 200):
        matrix = random_matrix(rng, rows, 200, precision)
        x = random_bits(rng, tokens, matrix.columns)
        for isa in granted_isas_of(precision):
            if isa in ("reference", "amx_emulated") and tokens == 300:
                continue
            teams = [_kernels.ThreadPool((cpus * 5)[:threads], 50) for threads in (1, 2, 5)]
            outputs = [forward(_kernels.Linear(matrix, team), x, rows, isa=isa) for team in teams]
            assert (outputs[0] == outputs[1]).all() and (outputs[0] == outputs[2]).all()


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("tokens", [1, 4, 5, 40])
def test_the_fastest_isa_is_chosen(precision, tokens, pool, rng):
    missing = _kernels.grants()
    amx = not missing["amx"] and tokens >= 5 and "amx" in isas_of(precision)
    vectors = "avx512" if not missing["avx512"] else "avx2" if not missing["avx2"] else "reference"
    linear = _kernels.Linear(random_matrix(rng, 48, 64, precision), pool)
    with crossover("amx", precision, (1, 5)):
        forward(linear, random_bits(rng, tokens, 64), 48)
    assert moved({}, linear.counters()) == {COUNTERS["amx" if amx else vectors]}


def test_counters_by_hand(pool, rng):
    matrix = random_matrix(rng, 40, 64, "bf16")
    linear = _kernels.Linear(matrix, pool)
    for tokens in (1, 300, 0):
        forward(linear, random_bits(rng, tokens, 64), 40, isa="avx2" if not _kernels.grants()["avx2"] else "reference")
    counters = linear.counters()
    assert counters["linear_calls"] == 2
    assert counters["weight_bytes"] == 2 * matrix.nbytes == 2 * 64 * 64 * 2
    assert counters["flops"] == 301 * 2 * 40 * 64


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_nan_stays_in_its_row(precision, pool, rng):
    matrix, x = random_matrix(rng, 40, 64, precision), random_bits(rng, 9, 64)
    x[4, 7] = 0x7FC0
    for isa in granted_isas_of(precision):
        out = widen(forward(_kernels.Linear(matrix, pool), x, 40, isa=isa))
        assert np.isnan(out[4]).all() and np.isfinite(np.delete(out, 4, 0)).all()


def test_linears_of_one_team_share_their_memory_from_many_threads(pool, rng):
    shapes = [(48, 64), (160, 32), (32, 320)]
    matrices = [random_matrix(rng, *shape, "int8") for shape in shapes]
    linears = [_kernels.Linear(matrix, pool) for matrix in matrices]
    wrong = []

    def work(index: int) -> None:
        own = np.random.default_rng(index)
        for tokens in (1, 30, 2, 70) * 5:
            x = random_bits(own, tokens, matrices[index].columns)
            if not agrees(forward(linears[index], x, matrices[index].rows), x, matrices[index]):
                wrong.append((index, tokens))

    together(work, len(shapes))
    assert not wrong


def test_a_linear_on_openmp_threads(rng):
    pytest.importorskip("torch")
    team = _kernels.OpenMPTeam(2)
    matrix, x = random_matrix(rng, 64, 96, "int4_g32"), random_bits(rng, 3, 96)
    assert agrees(forward(_kernels.Linear(matrix, team), x, 64), x, matrix)


@pytest.fixture
def linear(pool, rng) -> _kernels.Linear:
    return _kernels.Linear(random_matrix(rng, 32, 64, "bf16"), pool)


ZEROS = np.zeros((3, 64), np.uint16)
OUT = np.zeros((3, 32), np.uint16)
READ_ONLY = OUT.copy()
READ_ONLY.flags.writeable = False


@pytest.mark.parametrize(
    ("x", "out", "refusal"),
    [
        (ZEROS.astype(np.float32), OUT, (TypeError, "x must be uint16, not float32")),
        (ZEROS, OUT.astype(np.int16), (TypeError, "out must be uint16, not int16")),
        (ZEROS[:, :63], OUT, (ValueError, r"x must have shape \[any, 64\], not \[3, 63\]")),
        (ZEROS[0], OUT, (ValueError, r"x must have shape \[any, 64\], not \[64\]")),
        (ZEROS, OUT[:2], (ValueError, r"out must have shape \[3, 32\], not \[2, 32\]")),
        (np.repeat(ZEROS, 2, 0)[::2], OUT, (ValueError, "x must be contiguous")),
        (ZEROS, np.repeat(OUT, 2, 0)[::2], (ValueError, "out must be contiguous")),
        (ZEROS, READ_ONLY, (ValueError, "out must be writeable")),
    ],
)
def test_a_wrong_array_is_named(linear, x, out, refusal):
    error, message = refusal
    with pytest.raises(error, match=message):
        linear.forward(x, out)


def test_the_output_may_not_be_the_input(pool, rng):
    x = random_bits(rng, 3, 64)
    with pytest.raises(ValueError, match="out must not share memory with x"):
        _kernels.Linear(random_matrix(rng, 64, 64, "bf16"), pool).forward(x, x)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_pair_without_kernels_is_refused(precision, pool, rng):
    linear = _kernels.Linear(random_matrix(rng, 32, 64, precision), pool)
    for isa in isas_without(precision):
        error, reason = (RuntimeError, "not granted") if _kernels.grants()[isa] else (ValueError, "has no kernels for")
        with pytest.raises(error, match=f"isa {isa} .*{reason}"):
            linear.forward(ZEROS, OUT, isa=isa)
    with pytest.raises(ValueError, match="unknown isa 'avx1024'"):
        linear.forward(ZEROS, OUT, isa="avx1024")


def test_a_wrong_bias_is_named(pool):
    matrix = _kernels.PackedMatrix(32, 64)
    with pytest.raises(ValueError, match=r"bias must have shape \[32\], not \[31\]"):
        _kernels.Linear(matrix, pool, np.zeros(31, np.float32))
    with pytest.raises(TypeError, match="bias must be float32, not float64"):
        _kernels.Linear(matrix, pool, np.zeros(32))
