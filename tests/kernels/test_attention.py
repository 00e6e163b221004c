"""Attention of a decode step against a float64 softmax."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from ktbench import _kernels
from tests.kernels.layers import Bits, Floats, random_bits, to_bf16, widen
from tests.kernels.tables import needs

ISAS = [pytest.param(isa, marks=needs(isa), id=isa) for isa in ("reference", "avx2", "avx512", "avx512_bf16")]


@dataclass(frozen=True)
class Attention:
    """q [B, Hq, D], keys [B, Hkv, N, D], values [B, Hkv, N, Dv]."""

    q: Bits
    keys: Bits
    values: Bits
    first: NDArray[np.int64]
    length: NDArray[np.int64]
    scale: float
    sinks: NDArray[np.float32] | None = None

    @property
    def out_shape(self) -> tuple[int, int, int]:
        return (*self.q.shape[:2], self.values.shape[3])


def random_attention(
    rng: np.random.Generator, sizes: tuple[int, int, int, int, int], positions: int, sinks: bool, scale: float = 2.0
) -> Attention:
    """Positions outside first..length hold NaN: nobody may read them."""
    sequences, key_heads, group, size, value_size = sizes
    q = random_bits(rng, sequences, key_heads * group, size)
    keys = random_bits(rng, sequences, key_heads, positions, size)
    values = random_bits(rng, sequences, key_heads, positions, value_size)
    ends = np.sort(rng.integers(0, positions + 1, (sequences, 2)), axis=1)
    first, length = np.minimum(ends[:, 0], positions - 1), np.maximum(ends[:, 1], ends[:, 0] + 1)
    length = np.minimum(length, positions)
    for b in range(sequences):
        for cache in (keys, values):
            cache[b, :, : first[b]] = cache[b, :, length[b] :] = 0x7FC0
    sink = rng.standard_normal(q.shape[1]).astype(np.float32) if sinks else None
    return Attention(q, keys, values, first, length, float(scale / np.sqrt(size)), sink)


def attend(attention: _kernels.DecodeAttention, of: Attention, **options: object) -> Bits:
    out = np.full(of.out_shape, 0x7FC0, np.uint16)
    arrays = (of.q, of.keys, of.values, of.first, of.length, out)
    attention.forward(*arrays, scale=of.scale, sinks=of.sinks, **options)
    return out


def exact_attention(of: Attention) -> tuple[Floats, Floats]:
    """The output in float64, and the weighted sum of the values' magnitudes."""
    out, size = np.zeros(of.out_shape), np.zeros(of.out_shape)
    group = of.q.shape[1] // of.keys.shape[1]
    for b, h in np.ndindex(*of.q.shape[:2]):
        span = slice(of.first[b], of.length[b])
        keys, values = widen(of.keys[b, h // group, span]), widen(of.values[b, h // group, span])
        scores = keys @ widen(of.q[b, h]) * of.scale
        sink = [] if of.sinks is None else [float(of.sinks[h])]
        weights = np.exp(scores - max([*scores, *sink]))
        weights /= weights.sum() + np.exp(np.array(sink) - max([*scores, *sink])).sum()
        out[b, h], size[b, h] = weights @ values, weights @ np.abs(values)
    return out, size


def attention_agrees(out: Bits, of: Attention, isa: str) -> bool:
    """Within half a step of bf16, and float32 sums and exponentials, or weights that were rounded to bf16."""
    exact, size = exact_attention(of)
    rounding = 2**-8 if isa == "avx512_bf16" else 2**-16
    return bool((np.abs(widen(out) - exact) <= 2**-8 * np.abs(exact) + rounding * size).all())


SHAPES = st.fixed_dictionaries(
    {
        "sizes": st.tuples(
            st.integers(1, 3), st.integers(1, 3), st.integers(1, 19), *[st.one_of(st.integers(1, 70), st.just(128))] * 2
        ),
        "positions": st.integers(1, 200),
        "sinks": st.booleans(),
        "scale": st.sampled_from([2.0, 0.0, -1.0]),
    }
)


@pytest.mark.parametrize("isa", ISAS)
@given(shape=SHAPES, seed=st.integers(0, 2**32 - 1))
def test_attention_agrees_with_float64(isa, pool, shape, seed):
    of = random_attention(np.random.default_rng(seed), **shape)
    assert attention_agrees(attend(_kernels.DecodeAttention(pool), of, isa=isa), of, isa)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("positions", [256, 257, 3000])
def test_long_contexts_in_parts(isa, positions, pool, rng):
    of = random_attention(rng, (3, 2, 8, 64, 128), positions, sinks=True)
    of.first[0], of.length[0] = of.first[1], of.length[1] = 0, positions
    for cache in (of.keys, of.values):
        cache[:2] = random_bits(rng, 2, *cache.shape[1:])
    assert attention_agrees(attend(_kernels.DecodeAttention(pool), of, isa=isa), of, isa)


@pytest.mark.parametrize("isa", ISAS)
def test_scores_of_any_size(isa, pool, rng):
    """A few scores far above the rest, met early or late."""
    of = random_attention(rng, (2, 1, 4, 32, 32), 600, sinks=False)
    for b in range(2):
        span = slice(of.first[b], of.length[b])
        of.keys[b, :, span] = to_bf16(
            widen(of.keys[b, :, span]) * 10.0 ** rng.integers(-1, 3, (of.keys[b, 0, span].shape[0], 1))
        )
    assert attention_agrees(attend(_kernels.DecodeAttention(pool), of, isa=isa), of, isa)


@pytest.mark.parametrize("isa", ISAS)
def test_the_attention_check_rejects_what_is_wrong(isa, pool, rng):
    of = random_attention(rng, (2, 2, 4, 64, 64), 50, sinks=True)
    attention = _kernels.DecodeAttention(pool)
    right = attend(attention, of, isa=isa)
    of.length[1] -= 1
    one_less = attend(attention, of, isa=isa)
    of.length[1] += 1
    no_sinks = attend(attention, Attention(of.q, of.keys, of.values, of.first, of.length, of.scale), isa=isa)
    assert attention_agrees(right, of, isa)
    for mutant in (np.zeros_like(right), right[::-1], right[:, ::-1], no_sinks, one_less):
        assert not attention_agrees(mutant, of, isa)


@pytest.mark.parametrize("positions", [60, 2000])
def test_attention_does_not_depend_on_the_thread_count(positions, cpus, rng):
    of = random_attention(rng, (3, 2, 4, 64, 64), positions, sinks=False)
    outputs = [attend(_kernels.DecodeAttention(_kernels.ThreadPool((cpus * 5)[:n], 50)), of) for n in (1, 2, 5)]
    assert (outputs[0] == outputs[1]).all() and (outputs[0] == outputs[2]).all()


def test_strided_arrays(pool, rng):
    """q out of a fused projection, a cache that is part of a larger one."""
    of = random_attention(rng, (2, 2, 3, 64, 32), 40, sinks=False)
    fused = np.zeros((2, 10, 64), np.uint16)
    fused[:, :6] = of.q
    larger = np.zeros((3, 2, 50, 80), np.uint16)
    larger[:2, :, :40, :64] = of.keys
    view = Attention(fused[:, :6], larger[:2, :, :40, :64], of.values, of.first, of.length, of.scale)
    attention = _kernels.DecodeAttention(pool)
    assert (attend(attention, view) == attend(attention, of)).all()


def test_nothing_to_attend_to_gives_zeros(pool, rng):
    of = random_attention(rng, (3, 2, 2, 32, 32), 600, sinks=True)
    attention = _kernels.DecodeAttention(pool)
    whole = attend(attention, of)
    of.first[1] = of.length[1] = 9
    out = attend(attention, of)
    assert not out[1].any()
    assert (out[[0, 2]] == whole[[0, 2]]).all()


@pytest.mark.parametrize(
    ("name", "spoil", "refusal"),
    [
        ("q", lambda a: a.astype(np.float32), (TypeError, "q must be uint16, not float32")),
        ("q", lambda a: a[:, :3], (ValueError, "3 query heads are no multiple of 2 key heads")),
        ("q", lambda a: np.repeat(a, 2, 2)[:, :, ::2], (ValueError, "q must be contiguous along the last axis")),
        ("keys", lambda a: a[:1], (ValueError, r"keys must have shape \[2, any, any, 32\], not \[1, 2, 9, 32\]")),
        (
            "values",
            lambda a: a[:, :, :8],
            (ValueError, r"values must have shape \[2, 2, 9, any\], not \[2, 2, 8, 16\]"),
        ),
        ("first", lambda a: a.astype(np.int32), (TypeError, "first must be int64, not int32")),
        ("first", lambda a: a - 1, (IndexError, r"first=-1 of sequence 0 is not in 0\.\.9")),
        ("first", lambda a: a + 10, (IndexError, r"first=10 of sequence 0 is not in 0\.\.9")),
        ("length", lambda a: a + 1, (IndexError, r"length=10 of sequence 0 is not in 0\.\.9")),
        ("length", lambda a: a[:1], (ValueError, r"length must have shape \[2\], not \[1\]")),
        ("out", lambda a: a[:, :, :8], (ValueError, r"out must have shape \[2, 4, 16\], not \[2, 4, 8\]")),
        ("sinks", lambda a: a[:3], (ValueError, r"sinks must have shape \[4\], not \[3\]")),
    ],
)
def test_a_wrong_attention_argument_is_named(pool, rng, name, spoil, refusal):
    of = random_attention(rng, (2, 2, 2, 32, 16), 9, sinks=True)
    arguments = {"q": of.q, "keys": of.keys, "values": of.values, "sinks": of.sinks}
    arguments |= {"first": np.zeros(2, np.int64), "length": np.full(2, 9), "out": np.zeros((2, 4, 16), np.uint16)}
    error, message = refusal
    with pytest.raises(error, match=message):
        _kernels.DecodeAttention(pool).forward(**(arguments | {name: spoil(arguments[name])}), scale=1.0)
