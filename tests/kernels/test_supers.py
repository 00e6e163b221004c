"""Formats of super-blocks, of files and of numbers: what they stand for is what their own libraries say."""

from collections.abc import Hashable, Iterable
from functools import cache
from itertools import product
from math import ceil

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from ktbench import _kernels
from ktbench.engine.gguf.header import RECODED
from ktbench.engine.gguf.recoded import recode
from tests.drawing import covering, examples
from tests.kernels.arithmetic import Truth, exact, int8_of
from tests.kernels.layers import (
    Expert,
    forward,
    forward_proven,
    on_one_expert,
    random_batch,
    random_layer,
    stored,
    to_bf16,
    widen,
)
from tests.kernels.tables import FORMATS, SUPERS, granted_isas_of, kernels, quantises_activations

gguf = pytest.importorskip("gguf", reason="the truth about GGUF's formats is its own package")

SUPER = 256
# Where blocks of a file have their half-precision scales.
SCALES = {"Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}
SCALES |= {"IQ1_M": (), "INT4_ZP": range(0, 152, 19), "NVFP4": ()}
# Types that become the blocks of a precision.
KINDS = {name: (name.upper(),) for name in SUPERS}
KINDS |= {"iq1": ("IQ1_S", "IQ1_M"), "iq2": ("IQ2_XXS", "IQ2_XS", "IQ2_S")}
Blocks = NDArray[np.uint8]


def random_blocks(rng: np.random.Generator, kind: str, rows: int, columns: int) -> Blocks:
    """Of a file: any bytes at all, but scales of ordinary size. The last block of a row may reach beyond it."""
    size = RECODED[kind].block_bytes if kind in RECODED else FORMATS[kind.lower()]["block_bytes"]
    blocks = rng.integers(0, 256, (rows, ceil(columns / SUPER), size), np.uint8)
    ordinary = np.array([0x00, 0x06, 0x09, 0x88], np.uint8)
    for at in SCALES.get(kind, (0,)):
        blocks[..., at + 1] = rng.choice(ordinary, blocks.shape[:2])
    if kind == "IQ1_M":  # its scale lies in the upper bits of the last four words
        blocks[..., 53::2] = blocks[..., 53::2] & 15 | 0x10
        blocks[..., 55] &= 15
    if kind == "NVFP4":
        blocks[..., :4] = rng.standard_normal(blocks.shape[:2], np.float32)[..., None].view(np.uint8)
        blocks[..., 4:20] &= 0xBF  # neither large nor no numbers
    return blocks.reshape(rows, -1)


def dequantised(blocks: Blocks, kind: str) -> NDArray[np.float32]:
    if kind in ("NVFP4", "INT4_ZP"):
        return (nvfp4 if kind == "NVFP4" else int4_zp)(torch.from_numpy(blocks)).numpy()
    return gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[kind])


def nvfp4(rows: torch.Tensor) -> torch.Tensor:
    """A float32, 16 scales in e4m3, 16 groups of codes. The two scales are multiplied first, as ModelOpt does."""
    both, scales, codes = rows.view(len(rows), -1, 148).split([4, 16, 128], dim=-1)
    scales = scales.contiguous().view(torch.float8_e4m3fn).float() * both.contiguous().view(torch.float32)
    magnitudes = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    return (torch.cat([magnitudes, -magnitudes])[halves(codes, 8).int()] * scales[..., None]).flatten(1)


def int4_zp(rows: torch.Tensor) -> torch.Tensor:
    """Groups of a half, a zero point and codes."""
    scales, zeros, codes = rows.view(len(rows), -1, 19).split([2, 1, 16], dim=-1)
    return ((halves(codes, 16)[..., 0, :] - zeros.float()) * scales.contiguous().view(torch.float16).float()).flatten(1)


def halves(pairs: torch.Tensor, count: int) -> torch.Tensor:
    """[..., groups, 2 * count] float32 of groups of `count` bytes: what lies in low halves first."""
    pairs = pairs.reshape(*pairs.shape[:-1], -1, count)
    return torch.cat([pairs & 15, pairs >> 4], dim=-1).float()


def packable(blocks: Blocks, kind: str) -> Blocks:
    return recode(blocks, kind) if kind in RECODED else blocks


def random_packable(rng: np.random.Generator, precision: str, rows: int, columns: int) -> Blocks:
    kind = KINDS[precision][0]
    return packable(random_blocks(rng, kind, rows, columns), kind)


@cache
def random_experts(precision: str, sizes: tuple[int, int, int]) -> tuple[_kernels.PackedExperts, list[Expert]]:
    """Packed, and as stored: the same for every ISA."""
    rng, (experts, hidden, intermediate) = np.random.default_rng(list(sizes)), sizes
    packed = _kernels.PackedExperts(*sizes, precision)
    for e in range(experts):
        shapes = [(intermediate, hidden), (intermediate, hidden), (hidden, intermediate)]
        packed.write_expert_blocks(e, *(random_packable(rng, precision, *shape) for shape in shapes))
    return packed, stored(packed)


@pytest.mark.parametrize("kind", [kind for kinds in KINDS.values() for kind in kinds])
@examples(8)
@given(
    sizes=st.tuples(st.integers(1, 3 * SUPER), st.integers(1, 4 * SUPER)),
    domains=st.integers(1, 2),
    pooled=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_blocks_are_read_as_their_libraries_read_them(kind, pool, sizes, domains, pooled, seed):
    rng, (hidden, intermediate) = np.random.default_rng(seed), sizes
    precision = next(name for name, kinds in KINDS.items() if kind in kinds)
    packed = _kernels.PackedExperts(2, hidden, intermediate, precision, min(domains, ceil(intermediate / SUPER)))
    shapes = [(intermediate, hidden), (intermediate, hidden), (hidden, intermediate)]
    written = [random_blocks(rng, kind, *shape) for shape in shapes]
    packed.write_expert_blocks(1, *(packable(one, kind) for one in written), pool if pooled else None)
    for was, wrote in zip(packed.read_expert(1), written, strict=True):
        assert (was == dequantised(wrote, kind)[:, : was.shape[1]]).all()
    assert not any(matrix.any() for matrix in packed.read_expert(0))


@cache
def truths_of(precision: str, sizes: tuple[int, int, int]) -> list[Truth]:
    """For numbers of tokens on one of `random_experts`."""
    rng, experts = np.random.default_rng(20251013), random_experts(precision, sizes)[1]
    layer = random_layer(rng, *sizes)
    batches = (on_one_expert(random_batch(rng, layer, tokens, 1)) for tokens in (1, 2, 3, 4, 5, 7, 8, 9, 17, 33))
    return [Truth(precision, experts, batch) for batch in batches]


WHOLE, RAGGED = (2, 512, 256), (2, 346, 70)


def met_by_sizes(sizes: tuple[int, int, int], precision: str, isa: str) -> Iterable[Hashable]:
    """Every kernel on ragged rows, every ISA on whole ones."""
    return (isa, precision) if sizes == WHOLE else ((precision, isa),)


@pytest.mark.parametrize(
    ("sizes", "precision", "isa"), covering(product((RAGGED, WHOLE), kernels(*SUPERS)), met_by_sizes)
)
def test_any_number_of_tokens_agrees_with_float64(precision, isa, sizes, pool):
    moe = _kernels.MoE(random_experts(precision, sizes)[0], pool)
    for truth in truths_of(precision, sizes):
        assert truth.accepts(forward_proven(moe, truth.batch, isa), isa), f"{len(truth.batch.x_th)} tokens"


@pytest.mark.parametrize(("precision", "columns"), covering(product(SUPERS, (1024, 1000))))
def test_linear_layers_agree_with_float64(precision, columns, pool, rng):
    matrix = _kernels.PackedMatrix(88, columns, precision)
    matrix.write_blocks(random_packable(rng, precision, 88, columns))
    weight = matrix.read().astype(np.float64)
    for tokens in (1, 6, 40, 300):
        x = to_bf16(rng.standard_normal((tokens, columns)))
        of_activations = {
            integers: (activations @ weight.T, np.abs(activations) @ np.abs(weight.T))
            for integers, activations in ((False, widen(x)), (True, int8_of(widen(x))))
        }
        for isa in granted_isas_of(precision):
            if tokens == 300 and isa in ("reference", "amx_emulated"):
                continue
            out = np.empty((tokens, 88), np.uint16)
            _kernels.Linear(matrix, pool).forward(x, out, isa=isa)
            integers = quantises_activations(precision, isa)
            exactly, size = of_activations[integers]
            step = 2**-17 if integers else 2**-8
            assert (np.abs(widen(out) - exactly) <= 2**-8 * np.abs(exactly) + step * size).all(), (isa, tokens)


@pytest.mark.parametrize(
    ("gate_up", "down"), [("q4_k", "q6_k"), ("q2_k", "q3_k"), ("iq4_xs", "bf16"), ("q8_0", "q5_k"), ("iq1", "iq2")]
)
def test_down_has_a_format_of_its_own(gate_up, down, pool, rng):
    packed = _kernels.PackedExperts(1, 512, 256, gate_up, down_precision=down)
    gate, up = (
        random_packable(rng, gate_up, 256, 512) if gate_up in SUPERS else np.zeros((256, 512 // 32 * 34), np.uint8)
        for _ in range(2)
    )
    numbers = to_bf16(rng.standard_normal((512, 256)))
    packed.write_expert_blocks(0, gate, up, numbers if down == "bf16" else random_packable(rng, down, 512, 256))
    batch = random_batch(rng, random_layer(rng, 1, 512, 256), 9, 1)
    expected = exact(stored(packed), batch).out_th
    out = widen(forward(_kernels.MoE(packed, pool), batch, isa="reference"))
    assert np.linalg.norm(out - expected) <= 0.03 * np.linalg.norm(expected)


def quantised(numbers: NDArray[np.float64], precision: str) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Numbers as a matrix holds them, and in bf16."""
    was = to_bf16(numbers)
    matrix = _kernels.PackedMatrix(*was.shape, precision)
    matrix.write(was)
    return matrix.read(), widen(was)


def relative(was: NDArray[np.float32], wanted: NDArray[np.float32]) -> float:
    return float(np.linalg.norm(was - wanted) / np.linalg.norm(wanted))


# What `ggml_quantize_chunk` of llama.cpp, without an importance matrix, leaves of 256 x 2048 normal numbers, and of
# numbers of Student's t with 4 degrees of freedom.
GGML_ERRORS = {
    "q2_k": (0.2968, 0.343),
    "q3_k": (0.1508, 0.184),
    "q4_k": (0.0713, 0.0865),
    "q5_k": (0.0361, 0.0438),
    "q6_k": (0.0178, 0.0228),
    "iq4_xs": (0.0767, 0.0944),
}


@pytest.mark.parametrize("precision", GGML_ERRORS)
def test_numbers_are_quantised_at_least_as_well_as_by_llama_cpp(precision, rng):
    normal, heavy = rng.standard_normal((256, 2048)), rng.standard_t(4, (256, 2048))
    for numbers, theirs in zip((normal, heavy), GGML_ERRORS[precision], strict=True):
        assert relative(*quantised(0.02 * numbers, precision)) <= 1.02 * theirs


def rounded_to_nvfp4(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Groups of 16 whose largest becomes 6, before their scales are rounded to e4m3."""
    groups = x.reshape(-1, 16)
    scale = np.abs(groups).max(axis=1, keepdims=True) / 6
    values = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    nearest = values[np.abs(np.abs(groups / scale)[..., None] - values).argmin(axis=-1)]
    return (np.sign(groups) * nearest * scale).reshape(x.shape)


def rounded_with_zero_points(x: NDArray[np.float32]) -> NDArray[np.float32]:
    groups = x.reshape(-1, 32)
    low, high = groups.min(axis=1, keepdims=True), groups.max(axis=1, keepdims=True)
    scale = (high - low) / 15
    zero = np.rint(-low / scale)
    return ((np.clip(np.rint(groups / scale) + zero, 0, 15) - zero) * scale).reshape(x.shape)


@pytest.mark.parametrize(("precision", "rounds"), [("nvfp4", rounded_to_nvfp4), ("int4_zp", rounded_with_zero_points)])
def test_other_formats_are_rounded_as_their_libraries_do(precision, rounds, rng):
    """Scales take the rest: of e4m3 half an eighth, of a half 2^-11."""
    was, numbers = quantised(rng.standard_normal((64, 1024)), precision)
    assert relative(was, numbers) <= 1.04 * relative(rounds(numbers), numbers)


@pytest.mark.parametrize("precision", [name for name in SUPERS if FORMATS[name]["from_numbers"]])
@examples(6)
@given(exponent=st.integers(-10, 10), seed=st.integers(0, 2**16))
def test_what_is_easy_to_hold_is_held(precision, exponent, seed):
    """Zeros, one number everywhere and numbers of one sign, of any size; what is not finite spoils its super-block."""
    rng, size = np.random.default_rng(seed), 2.0**exponent
    x = np.zeros((4, 2 * SUPER))
    x[1], x[2], x[3] = size, -size * rng.uniform(0.5, 1, 2 * SUPER), size * rng.standard_normal(2 * SUPER)
    x[3, seed % SUPER] = rng.choice([np.nan, np.inf])
    was, numbers = quantised(x, precision)
    assert not was[0].any()
    assert np.allclose(was[1], size, rtol=0.02)
    assert relative(was[2], numbers[2]) < 0.2
    assert np.isnan(was[3, :SUPER]).all()
    assert np.isfinite(was[3, SUPER:]).all()


@pytest.mark.parametrize("precision", [name for name in SUPERS if not FORMATS[name]["from_numbers"]])
def test_points_of_lattices_come_from_files_alone(precision, rng):
    matrix = _kernels.PackedMatrix(16, SUPER, precision)
    with pytest.raises(ValueError, match=f"{precision}: "):
        matrix.write(to_bf16(rng.standard_normal((16, SUPER))))


@pytest.mark.parametrize("precision", [name for name in SUPERS if FORMATS[name]["from_numbers"]])
@examples(6)
@given(columns=st.integers(1, 3 * SUPER), seed=st.integers(0, 2**16))
def test_rows_that_end_within_a_super_block_are_filled_with_zeros(precision, columns, seed):
    numbers = np.random.default_rng(seed).standard_normal((3, columns))
    filled = np.pad(numbers, [(0, 0), (0, -columns % SUPER)])
    assert np.array_equal(quantised(numbers, precision)[0], quantised(filled, precision)[0][:, :columns])
