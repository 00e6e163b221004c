"""Formats of blocks: weights are quantised as GGUF's own package does it, and its blocks are taken as they are."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from ktbench import _kernels
from tests.drawing import examples
from tests.kernels.arithmetic import int8_of
from tests.kernels.layers import (
    OF_BLOCKS,
    Bits,
    expert_of,
    forward,
    named,
    random_batch,
    random_biases,
    random_layer,
    to_bf16,
    weights_of,
    widen,
)
from tests.kernels.tables import BLOCK, FORMATS, GGUF, granted_isas_of, quantises_activations

gguf = pytest.importorskip("gguf", reason="the truth about GGUF's formats is its own package")

Blocks = NDArray[np.uint8]
BLOCK_BYTES = {precision: FORMATS[precision]["block_bytes"] for precision in GGUF}


def type_of(precision: str) -> object:
    return gguf.GGMLQuantizationType[precision.upper()]


def quantised(bits: Bits, precision: str) -> Blocks:
    with np.errstate(over="ignore"):  # scales beyond half precision
        return gguf.quants.quantize(widen(bits).astype(np.float32), type_of(precision))


def dequantised(blocks: Blocks, precision: str) -> NDArray[np.float32]:
    with np.errstate(invalid="ignore"):  # 0 times an infinite scale
        return gguf.quants.dequantize(blocks, type_of(precision))


def random_blocks(rng: np.random.Generator, precision: str, rows: int, columns: int) -> Blocks:
    """Any bytes at all, but scales of ordinary size."""
    blocks = rng.integers(0, 256, (rows, columns // BLOCK, BLOCK_BYTES[precision]), np.uint8)
    if precision == "mxfp4":
        blocks[..., 0] = rng.integers(117, 130, blocks.shape[:2], np.uint8)
    else:
        blocks[..., 1] = rng.choice(np.array([0x20, 0x2C, 0x80, 0xA4], np.uint8), blocks.shape[:2])
    return blocks.reshape(rows, -1)


def saved(packed: _kernels.PackedExperts, path: Path) -> bytes:
    packed.save(str(path))
    return path.read_bytes()


QUANTISED_BY_GGUF = sorted(set(GGUF) - {"iq4_nl"})  # which its package reads, but does not write


@pytest.mark.parametrize("precision", QUANTISED_BY_GGUF)
@examples(12)
@given(
    kind=st.sampled_from(OF_BLOCKS), sizes=st.tuples(st.integers(1, 5), st.integers(1, 5)), seed=st.integers(0, 2**16)
)
def test_quantising_is_that_of_gguf_bit_for_bit(precision, tmp_path_factory, kind, sizes, seed):
    """The same file from bf16 weights as from blocks that GGUF's package made of them."""
    hidden, intermediate = (BLOCK * size for size in sizes)
    matrices = expert_of(kind, np.random.default_rng(seed), hidden, intermediate)
    ours, theirs = (_kernels.PackedExperts(1, hidden, intermediate, precision) for _ in range(2))
    ours.write_expert(0, *matrices)
    theirs.write_expert_blocks(0, *(quantised(matrix, precision) for matrix in matrices))
    path = tmp_path_factory.getbasetemp() / "experts"
    assert saved(ours, path) == saved(theirs, path)


@pytest.mark.parametrize("precision", GGUF)
@examples(12)
@given(
    sizes=st.tuples(st.integers(1, 5), st.integers(1, 9)),
    domains=st.integers(1, 3),
    pooled=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_blocks_are_read_as_gguf_reads_them(precision, pool, sizes, domains, pooled, seed):
    rng, (hidden, intermediate) = np.random.default_rng(seed), (BLOCK * size for size in sizes)
    packed = _kernels.PackedExperts(2, hidden, intermediate, precision, min(domains, -(-intermediate // 64)))
    shapes = [(intermediate, hidden), (intermediate, hidden), (hidden, intermediate)]
    written = [random_blocks(rng, precision, *shape) for shape in shapes]
    packed.write_expert_blocks(1, *written, pool if pooled else None)
    for was, wrote in zip(packed.read_expert(1), written, strict=True):
        assert (was == dequantised(wrote, precision)).all()
    assert not any(matrix.any() for matrix in packed.read_expert(0))


@pytest.mark.parametrize(("precision", "one"), [("q8_0", 1), ("q4_0", 0x99), ("iq4_nl", 0x88)])
def test_every_scale_of_half_precision(precision, one):
    """Subnormal ones, infinities and NaN among them, times the integer 1."""
    scales = np.arange(2**16, dtype=np.uint16).view(np.uint8).reshape(-1, 2)
    numbers = np.full((2**16, BLOCK_BYTES[precision] - 2), one, np.uint8)
    blocks = np.concatenate([scales, numbers], axis=1)
    matrix = _kernels.PackedMatrix(2**16, BLOCK, precision)
    matrix.write_blocks(blocks)
    expected = np.arange(2**16, dtype=np.uint16).view(np.float16).astype(np.float32)
    assert np.array_equal(matrix.read()[:, BLOCK - 1], expected, equal_nan=True)


def test_every_power_of_two():
    """Of e8m0, subnormal ones and the NaN among them, times every number of e2m1."""
    codes = np.arange(16, dtype=np.uint8) | 0x20
    blocks = np.concatenate([np.arange(256, dtype=np.uint8)[:, None], np.tile(codes, (256, 1))], axis=1)
    matrix = _kernels.PackedMatrix(256, BLOCK, "mxfp4")
    matrix.write_blocks(blocks)
    e2m1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    weights = np.concatenate([e2m1, -e2m1, np.ones(16)])
    expected = np.append(2.0 ** np.arange(-127, 128), np.nan)[:, None] * weights
    with np.errstate(over="ignore"):
        assert np.array_equal(matrix.read(), expected.astype(np.float32), equal_nan=True)


@pytest.mark.parametrize("precision", GGUF)
def test_rows_of_blocks_may_lie_apart_and_come_in_parts(precision, pool, rng):
    """As q, k and v projections do: one after the other, in any order, at multiples of 16 rows."""
    parts = [random_blocks(rng, precision, rows, 96) for rows in (64, 16, 21)]
    matrix = _kernels.PackedMatrix(101, 96, precision)
    for part, first in ((parts[2], 80), (parts[0], 0), (parts[1], 64)):
        matrix.write_blocks(np.pad(part, ((0, 0), (0, 7)))[:, : part.shape[1]], first, pool)
    assert (matrix.read(pool) == dequantised(np.concatenate(parts), precision)).all()


@pytest.mark.parametrize("precision", GGUF)
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_a_poisoned_block_is_nan_and_no_other(precision, poison, rng):
    weight = weights_of("gaussian", rng, 20, 96)
    matrix = _kernels.PackedMatrix(20, 96, precision)
    matrix.write(weight)
    clean = matrix.read()
    weight[3, 40] = to_bf16(poison)
    matrix.write(weight)
    assert np.isnan(matrix.read()[3, 32:64]).all()
    clean[3, 32:64] = np.nan
    assert np.array_equal(matrix.read(), clean, equal_nan=True)


@pytest.mark.parametrize("precision", GGUF)
def test_weights_without_a_reciprocal_are_zero(precision):
    matrix = _kernels.PackedMatrix(16, 64, precision)
    matrix.write(np.full((16, 64), 0x0001, np.uint16))  # the smallest there is
    assert not matrix.read().any()


@pytest.mark.parametrize("precision", QUANTISED_BY_GGUF)
def test_experts_of_blocks_compute_as_those_that_were_quantised_here(precision, pool, rng):
    layer = random_layer(rng, 2, 96, 160)
    biases, batch = random_biases(rng, layer), random_batch(rng, layer, 6, 2)
    ours, theirs = (_kernels.PackedExperts(2, 96, 160, precision, 2, biases=True) for _ in range(2))
    for e, of_expert in enumerate(biases):
        matrices = [layer.gate_eih[e], layer.up_eih[e], layer.down_ehi[e]]
        ours.write_expert(e, *matrices, pool, **named(of_expert))
        theirs.write_expert_blocks(e, *(quantised(matrix, precision) for matrix in matrices), pool, **named(of_expert))
        assert all((a == b).all() for a, b in zip(theirs.read_biases(e), of_expert, strict=True))
    for isa in granted_isas_of(precision):
        outs = [forward(_kernels.MoE(packed, pool), batch, isa=isa) for packed in (ours, theirs)]
        assert (outs[0] == outs[1]).all()


@pytest.mark.parametrize("precision", GGUF)
def test_one_sign_of_weights_costs_no_precision(precision, pool, rng):
    """What activations raised by 128 add is then as large as it gets, and taken off again."""
    weight = to_bf16(np.abs(rng.standard_normal((32, 4096))) + 1)
    x = to_bf16(rng.standard_normal((7, 4096)))
    x[:, 1::2] = x[:, ::2] ^ 0x8000  # products nearly cancel
    matrix, exact = _kernels.PackedMatrix(32, 4096, precision), np.empty((7, 32))
    matrix.write(weight)
    exact[:] = int8_of(widen(x)) @ matrix.read().astype(np.float64).T
    for isa in (isa for isa in granted_isas_of(precision) if quantises_activations(precision, isa)):
        out = np.empty((7, 32), np.uint16)
        _kernels.Linear(matrix, pool).forward(x, out, isa=isa)
        size = np.abs(int8_of(widen(x))) @ np.abs(matrix.read().astype(np.float64)).T
        assert (np.abs(widen(out) - exact) <= 2**-8 * np.abs(exact) + 2**-20 * size).all()


@pytest.mark.parametrize("precision", GGUF)
@pytest.mark.parametrize(("sizes", "message"), [((33, 64), "hidden=33"), ((64, 48), "intermediate=48")])
def test_sizes_that_are_no_whole_blocks_are_refused(precision, sizes, message):
    with pytest.raises(ValueError, match=f"{message} must be a multiple of 32"):
        _kernels.PackedExperts(1, *sizes, precision)


EXPERT = {"q8_0": (68, 34), "q4_0": (36, 18), "iq4_nl": (36, 18), "mxfp4": (34, 17)}  # bytes of 64 and of 32 weights


@pytest.mark.parametrize("precision", GGUF)
@pytest.mark.parametrize(
    ("name", "spoil", "error", "message"),
    [
        ("gate", lambda a: a.astype(np.int8), TypeError, "gate must be uint8, not int8"),
        ("up", lambda a: a[:, :-1], ValueError, r"up must have shape \[32, (68|36|34)\], not \[32, (67|35|33)\]"),
        ("down", lambda a: a[:63], ValueError, r"down must have shape \[64, (34|18|17)\], not \[63, (34|18|17)\]"),
        ("down", lambda a: a[:, ::-1], ValueError, "down must have contiguous rows"),
        ("gate", np.asfortranarray, ValueError, "gate must have contiguous rows"),
        ("up", lambda a: a[0], ValueError, r"up must have shape \[32, (68|36|34)\], not \[(68|36|34)\]"),
    ],
)
def test_wrong_blocks_are_named(precision, name, spoil, error, message):
    wide, narrow = EXPERT[precision]
    blocks = {"gate": np.zeros((32, wide), np.uint8), "up": np.zeros((32, wide), np.uint8)}
    blocks["down"] = np.zeros((64, narrow), np.uint8)
    with pytest.raises(error, match=message):
        _kernels.PackedExperts(1, 64, 32, precision).write_expert_blocks(0, **(blocks | {name: spoil(blocks[name])}))


def test_blocks_of_another_precision_are_refused():
    blocks = np.zeros((32, 34), np.uint8)
    with pytest.raises(ValueError, match="gate: precision int8 has no blocks.* q8_0, q4_0, iq4_nl, mxfp4"):
        _kernels.PackedExperts(1, 32, 32, "int8").write_expert_blocks(0, blocks, blocks, blocks)
    with pytest.raises(ValueError, match="blocks: precision bf16 has no blocks"):
        _kernels.PackedMatrix(32, 32).write_blocks(blocks)
    with pytest.raises(ValueError, match=r"blocks must have shape \[any, 18\], not \[32, 34\]"):
        _kernels.PackedMatrix(32, 32, "q4_0").write_blocks(blocks)


def test_blocks_go_where_weights_go(rng, tmp_path):
    """The same refusals: experts out of range, experts in a file, rows that are not there."""
    packed, blocks = _kernels.PackedExperts(1, 32, 32, "q8_0"), random_blocks(rng, "q8_0", 32, 32)
    with pytest.raises(IndexError, match=r"expert 1 is not in 0\.\.0"):
        packed.write_expert_blocks(1, blocks, blocks, blocks)
    packed.save(str(tmp_path / "experts"))
    with pytest.raises(RuntimeError, match="packed experts in a file cannot be written"):
        _kernels.PackedExperts.map(str(tmp_path / "experts")).write_expert_blocks(0, blocks, blocks, blocks)
    with pytest.raises(ValueError, match=r"rows 16\.\.47 are not all in 0\.\.31"):
        _kernels.PackedMatrix(32, 32, "q8_0").write_blocks(blocks, 16)
