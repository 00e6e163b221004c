"""Norms and rotated heads of a decode step against Transformers' own modules."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from ktbench import _kernels
from tests.kernels.layers import Bits, bits_of, random_bits, tensor, to_bf16, widen
from tests.kernels.tables import needs

torch = pytest.importorskip("torch")
qwen3_moe = pytest.importorskip("transformers.models.qwen3_moe.modeling_qwen3_moe")
qwen3_next = pytest.importorskip("transformers.models.qwen3_next.modeling_qwen3_next")

EPS = 1e-6
ISAS = [pytest.param(isa, marks=needs(isa), id=isa) for isa in ("reference", "avx2", "avx512")]


def exact_bits(rng: np.random.Generator, *shape: int) -> Bits:
    """Numbers whose squares add up in float32 without rounding, whatever the order."""
    return to_bf16(rng.integers(-24, 25, shape) / 8)


def steps_apart(a: Bits, b: Bits) -> NDArray[np.int64]:
    """How many bf16 numbers lie between."""
    ordered = [np.where(x & 0x8000, -(x & 0x7FFF).astype(np.int64), x.astype(np.int64)) for x in (a, b)]
    return np.abs(ordered[0] - ordered[1])


def normed(x: Bits, weight: Bits, offset: float) -> Bits:
    """As Transformers does it."""
    module = (qwen3_next.Qwen3NextRMSNorm if offset else qwen3_moe.Qwen3MoeRMSNorm)(len(weight), eps=EPS)
    module.weight.data = tensor(weight)
    return bits_of(module(tensor(x)))


def rms_norm(x: Bits, weight: Bits, **options: object) -> Bits:
    out = np.full(x.shape, 0x7FC0, np.uint16)
    _kernels.rms_norm(x, weight, out, EPS, **options)
    return out


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("offset", [0.0, 1.0])
@given(rows=st.integers(1, 5), size=st.integers(1, 300), seed=st.integers(0, 2**32 - 1))
def test_rms_norm_is_that_of_transformers_bit_for_bit(isa, offset, rows, size, seed):
    rng = np.random.default_rng(seed)
    x, weight = exact_bits(rng, rows, size), random_bits(rng, size)
    assert (rms_norm(x, weight, offset=offset, isa=isa) == normed(x, weight, offset)).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("offset", [0.0, 1.0])
@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_rms_norm_is_one_step_off_at_most(isa, offset, scale, pool, rng):
    """Where the order of summation tips a result, or of the two roundings of LlamaRMSNorm the first."""
    x, weight = to_bf16(rng.standard_normal((64, 2048)) * scale), random_bits(rng, 2048)
    apart = steps_apart(rms_norm(x, weight, offset=offset, team=pool, isa=isa), normed(x, weight, offset))
    assert apart.max() <= 1 and (apart > 0).mean() < 0.01


@pytest.mark.parametrize("isa", ISAS)
def test_rms_norm_is_the_same_on_every_isa_and_team(isa, pool, rng):
    x, weight = random_bits(rng, 70, 1500), random_bits(rng, 1500)
    assert (rms_norm(x, weight, isa=isa) == rms_norm(x, weight, isa="reference", team=pool)).all()


def test_rms_norm_of_strided_rows_in_place(rng):
    wide, weight = random_bits(rng, 4, 100), random_bits(rng, 40)
    rows, before = wide[::2, 30:70], wide.copy()
    expected = rms_norm(rows.copy(), weight)
    _kernels.rms_norm(rows, weight, rows, EPS)
    assert (rows == expected).all()
    untouched = np.ones(wide.shape, bool)
    untouched[::2, 30:70] = False
    assert (wide[untouched] == before[untouched]).all()


@pytest.mark.parametrize("isa", ISAS)
def test_rms_norm_of_a_nan_is_nan(isa, rng):
    x = random_bits(rng, 2, 64)
    x[0, 5] = 0x7FC0
    out = widen(rms_norm(x, random_bits(rng, 64), isa=isa))
    assert np.isnan(out[0]).all() and np.isfinite(out[1]).all()


@dataclass(frozen=True)
class Heads:
    """Arguments of prepare_heads, and the sizes they were made from."""

    qkv: Bits
    q_norm: Bits | None
    k_norm: Bits | None
    cos: Bits
    sin: Bits
    position: NDArray[np.int64]
    query_heads: int
    key_heads: int
    size: int


@dataclass(frozen=True)
class Prepared:
    q: Bits
    keys: Bits
    values: Bits


POSITIONS = 7


def random_heads(rng: np.random.Generator, sizes: tuple[int, int, int, int, int], norms: bool) -> Heads:
    sequences, query_heads, key_heads, half, rotated_half = sizes
    size, rotated = 2 * half, 2 * min(rotated_half, half)
    qkv = (exact_bits if norms else random_bits)(rng, sequences, (query_heads + 2 * key_heads) * size)
    angle = rng.uniform(0, 100, (sequences, rotated))
    weights = [random_bits(rng, size) if norms else None for _ in range(2)]
    position = rng.integers(0, POSITIONS, sequences)
    return Heads(qkv, *weights, to_bf16(np.cos(angle)), to_bf16(np.sin(angle)), position, query_heads, key_heads, size)


def prepare(heads: Heads, **options: object) -> Prepared:
    sequences = len(heads.qkv)
    q = np.full((sequences, heads.query_heads, heads.size), 0x7FC0, np.uint16)
    keys, values = (np.full((sequences, heads.key_heads, POSITIONS, heads.size), 7, np.uint16) for _ in range(2))
    arrays = (heads.qkv, heads.q_norm, heads.k_norm, EPS, heads.cos, heads.sin, heads.position, q, keys, values)
    _kernels.prepare_heads(*arrays, **options)
    return Prepared(q, keys, values)


def expected_of(heads: Heads, offset: float) -> Prepared:
    """Qwen3NextAttention's path, without its gate; where all of a head is rotated it is Qwen3MoeAttention's."""
    parts = heads.qkv.reshape(len(heads.qkv), -1, heads.size)
    q, k, v = np.split(parts, [heads.query_heads, heads.query_heads + heads.key_heads], axis=1)
    if heads.q_norm is not None and heads.k_norm is not None:
        q, k = normed(q, heads.q_norm, offset), normed(k, heads.k_norm, offset)
    states = [tensor(x)[:, :, None] for x in (q, k)]
    rotation = [tensor(x)[:, None] for x in (heads.cos, heads.sin)]
    q_rotated, k_rotated = (bits_of(x)[:, :, 0] for x in qwen3_next.apply_rotary_pos_emb(*states, *rotation))
    keys, values = (np.full((len(q), heads.key_heads, POSITIONS, heads.size), 7, np.uint16) for _ in range(2))
    for b, p in enumerate(heads.position):
        keys[b, :, p], values[b, :, p] = k_rotated[b], v[b]
    return Prepared(q_rotated, keys, values)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("offset", [0.0, 1.0])
@given(
    sizes=st.tuples(*[st.integers(1, n) for n in (4, 5, 3, 70, 70)]),
    norms=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_heads_are_those_of_transformers_bit_for_bit(isa, offset, sizes, norms, seed):
    heads = random_heads(np.random.default_rng(seed), sizes, norms)
    got, expected = prepare(heads, offset=offset, isa=isa), expected_of(heads, offset)
    assert (got.q == expected.q).all()
    assert (got.keys == expected.keys).all() and (got.values == expected.values).all()


def test_heads_of_many_sequences_on_a_team(pool, rng):
    heads = random_heads(rng, (40, 16, 4, 64, 64), norms=True)
    alone, together = prepare(heads), prepare(heads, team=pool)
    assert (alone.q == together.q).all() and (alone.keys == together.keys).all()
    assert (together.q == expected_of(heads, 0.0).q).all()


@pytest.mark.parametrize(
    ("name", "spoil", "refusal"),
    [
        ("qkv", lambda a: a[:, 1:], (ValueError, r"qkv must have shape \[2, 128\], not \[2, 127\]")),
        ("cos", lambda a: a[:, 1:], (ValueError, "cos has 15 numbers: an even number up to 16 can be rotated")),
        ("sin", lambda a: a[:, 2:], (ValueError, r"sin must have shape \[2, 16\], not \[2, 14\]")),
        ("q_norm", lambda a: a[1:], (ValueError, r"q_norm must have shape \[16\], not \[15\]")),
        ("position", lambda a: a + POSITIONS, (IndexError, r"position=\d+ of sequence 0 is not in 0\.\.6")),
        ("keys", lambda a: a[..., 1:], (ValueError, r"keys must have shape \[2, any, any, 16\], not \[2, 2, 7, 15\]")),
        ("values", lambda a: a[:, :, 1:], (ValueError, r"values must have shape \[2, 2, 7, 16\], not \[2, 2, 6, 16\]")),
    ],
)
def test_a_wrong_head_argument_is_named(rng, name, spoil, refusal):
    heads = random_heads(rng, (2, 4, 2, 8, 8), norms=True)
    arguments = {key: getattr(heads, key) for key in ("qkv", "q_norm", "k_norm", "cos", "sin", "position")}
    cache = [np.zeros((2, 2, POSITIONS, 16), np.uint16) for _ in range(2)]
    arguments |= {"eps": EPS, "q_out": np.zeros((2, 4, 16), np.uint16), "keys": cache[0], "values": cache[1]}
    error, message = refusal
    with pytest.raises(error, match=message):
        _kernels.prepare_heads(**(arguments | {name: spoil(arguments[name])}))


def test_a_wrong_norm_argument_is_named(rng):
    x, weight = random_bits(rng, 2, 8), random_bits(rng, 8)
    with pytest.raises(ValueError, match=r"weight must have shape \[8\], not \[7\]"):
        rms_norm(x, weight[:7])
    with pytest.raises(ValueError, match=r"out must have shape \[2, 8\], not \[1, 8\]"):
        _kernels.rms_norm(x, weight, x[:1], EPS)
    with pytest.raises(ValueError, match="x must have at least one column"):
        rms_norm(x[:, :0], weight[:0])
    with pytest.raises(ValueError, match="isa amx_emulated has no kernels for this: one of reference, avx2, avx512"):
        rms_norm(x, weight, isa="amx_emulated")
    with pytest.raises(ValueError, match="unknown isa 'avx1024'"):
        rms_norm(x, weight, isa="avx1024")


def test_calls_without_tokens_do_nothing(pool):
    """On arrays that numpy made empty, whose strides are 0, not on empty parts of others."""
    ints, cache = np.zeros(0, np.int64), np.zeros((2, 2, POSITIONS, 16), np.uint16)
    q, kept = np.zeros((0, 2, 16), np.uint16), np.zeros((0, 2, POSITIONS, 16), np.uint16)
    rows = np.zeros((0, 6 * 16), np.uint16)
    _kernels.rms_norm(rows, np.ones(6 * 16, np.uint16), rows, EPS, team=pool)
    _kernels.prepare_heads(rows, None, None, EPS, q[:, 0], q[:, 0], ints, q, kept, kept, team=pool)
    _kernels.write_pages(q, ints, ints, cache)
    _kernels.multiply_heads(q, np.zeros((2, 16, 16), np.uint16), q, pool)
    _kernels.DecodeAttention(pool).forward(q, kept, kept, ints, ints, q, scale=1.0)
    tables = np.zeros((1, 1), np.int64)
    _kernels.PagedAttention(pool).forward(q, cache, cache, tables, ints, ints, q, scale=1.0)
    assert not cache.any()
