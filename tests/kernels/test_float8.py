"""e4m3 with scales for tiles or rows: PyTorch's numbers of it are the truth."""

from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from ktbench import _kernels
from tests.drawing import examples
from tests.kernels.arithmetic import Truth
from tests.kernels.layers import forward_proven, random_batch, random_layer, stored, to_bf16
from tests.kernels.tables import kernels

TILE, TOKENS = 128, (1, 2, 3, 5, 12, 13, 40)
Bytes = NDArray[np.uint8]


def float8_of(codes: Bytes) -> NDArray[np.float32]:
    return torch.from_numpy(codes).view(torch.float8_e4m3fn).float().numpy()


def blocks_of(codes: Bytes, scales: NDArray[np.float32]) -> Bytes:
    """Codes [N, K] and a scale for each of [N, K / 128], as they are written."""
    by_block = codes.reshape(len(codes), -1, TILE)
    raw = np.ascontiguousarray(scales, np.float32)[..., None].view(np.uint8)
    return np.concatenate([raw, by_block], axis=2).reshape(len(codes), -1)


def random_codes(rng: np.random.Generator, rows: int, columns: int) -> Bytes:
    """Every number that e4m3 has, and no NaN."""
    codes = rng.integers(0, 256, (rows, columns), np.uint8)
    return np.where(codes & 0x7F == 0x7F, np.uint8(0), codes)


def random_scales(kind: str, rng: np.random.Generator, rows: int, columns: int) -> NDArray[np.float32]:
    shape = {"tile": (-(-rows // TILE), columns // TILE), "row": (rows, 1), "whole": (1, 1)}[kind]
    scales = rng.uniform(1e-4, 2e-3, shape).astype(np.float32)
    if kind == "tile":
        scales = scales.repeat(TILE, 0)[:rows]
    return np.broadcast_to(scales, (rows, columns // TILE))


@pytest.mark.parametrize("kind", ["tile", "row", "whole"])
@examples(8)
@given(
    sizes=st.tuples(st.integers(1, 3), st.integers(1, 20)),
    domains=st.integers(1, 2),
    pooled=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_blocks_are_the_numbers_of_pytorch(kind, pool, sizes, domains, pooled, seed):
    rng, (hidden, intermediate) = np.random.default_rng(seed), (TILE * size for size in sizes)
    packed = _kernels.PackedExperts(1, hidden, intermediate, "fp8", min(domains, sizes[1]))
    shapes = [(intermediate, hidden), (intermediate, hidden), (hidden, intermediate)]
    codes = [random_codes(rng, *shape) for shape in shapes]
    scales = [random_scales(kind, rng, *shape) for shape in shapes]
    packed.write_expert_blocks(0, *map(blocks_of, codes, scales), pool if pooled else None)
    for was, code, scale in zip(packed.read_expert(0), codes, scales, strict=True):
        assert (was == float8_of(code) * scale.repeat(TILE, 1)).all()


@cache
def of_every_number():
    """Packed experts, and what is right for batches of some tokens."""
    rng = np.random.default_rng(20251013)
    packed = _kernels.PackedExperts(1, 2304, 256, "fp8")
    shapes = [(256, 2304), (256, 2304), (2304, 256)]
    packed.write_expert_blocks(
        0, *(blocks_of(random_codes(rng, *shape), random_scales("tile", rng, *shape)) for shape in shapes)
    )
    layer, experts = random_layer(rng, 1, 2304, 256), stored(packed)
    return packed, {tokens: Truth("fp8", experts, random_batch(rng, layer, tokens, 1)) for tokens in TOKENS}


@pytest.mark.parametrize(("precision", "isa"), kernels("fp8"))
@pytest.mark.parametrize("tokens", TOKENS)
def test_every_number_is_multiplied_rightly(precision, isa, tokens, pool):
    """Subnormal ones among them, over more groups than one record of scales has."""
    packed, truths = of_every_number()
    truth = truths[tokens]
    assert truth.accepts(forward_proven(_kernels.MoE(packed, pool), truth.batch, isa), isa)


def test_quantising_is_that_of_pytorch():
    """Of 16 rows by 128 columns: the largest magnitude becomes 448, the others are rounded to nearest even."""
    rng = np.random.default_rng(5)
    weights = to_bf16(rng.standard_normal((64, 2 * TILE + 40)) * 10.0 ** rng.integers(-4, 4, (64, 1)))
    matrix = _kernels.PackedMatrix(*weights.shape, "fp8")
    matrix.write(weights)
    exact = torch.from_numpy(weights.view(np.int16).copy()).view(torch.bfloat16).float()
    expected = torch.empty_like(exact)
    for row in range(0, 64, 16):
        for column in range(0, exact.shape[1], TILE):
            tile = exact[row : row + 16, column : column + TILE]
            scale = tile.abs().max() / 448
            expected[row : row + 16, column : column + TILE] = (tile / scale).to(torch.float8_e4m3fn).float() * scale
    assert (matrix.read() == expected.numpy()).all()


def test_a_code_that_is_no_number_spoils_its_row_alone(rng):
    codes = random_codes(rng, 20, TILE)
    codes[3, 7], codes[17, 100] = 0x7F, 0xFF
    matrix = _kernels.PackedMatrix(20, TILE, "fp8")
    matrix.write_blocks(blocks_of(codes, np.full((20, 1), 0.5, np.float32)))
    spoilt = np.isnan(matrix.read())
    assert spoilt[[3, 17]].all() and not np.delete(spoilt, [3, 17], 0).any()


def test_other_scales_are_refused(rng):
    codes, scales = random_codes(rng, 32, 2 * TILE), rng.uniform(1, 2, (32, 2)).astype(np.float32)
    matrix = _kernels.PackedMatrix(32, 2 * TILE, "fp8")
    with pytest.raises(ValueError, match="fp8"):
        matrix.write_blocks(blocks_of(codes, scales))


def test_a_row_may_end_within_a_block(rng):
    codes, scales = random_codes(rng, 16, 2 * TILE), rng.uniform(1, 2, (16, 1)).astype(np.float32).repeat(2, axis=1)
    codes[:, 200:] = 0
    matrix, whole = _kernels.PackedMatrix(16, 200, "fp8"), _kernels.PackedMatrix(16, 2 * TILE, "fp8")
    for one in (matrix, whole):
        one.write_blocks(blocks_of(codes, scales))
    assert np.array_equal(matrix.read(), whole.read()[:, :200])
    with pytest.raises(ValueError, match="blocks"):
        matrix.write_blocks(np.zeros((16, 132), np.uint8))


def test_codes_behind_the_last_column_are_left_out(rng):
    """Even where they are no numbers."""
    codes, scales = random_codes(rng, 16, 2 * TILE), np.full((16, 2), 0.5, np.float32)
    codes[:, 200:] = 0x7F
    matrix = _kernels.PackedMatrix(16, 200, "fp8")
    matrix.write_blocks(blocks_of(codes, scales))
    assert np.array_equal(matrix.read(), float8_of(codes[:, :200]) * np.float32(0.5))
