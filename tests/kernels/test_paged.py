"""Attention over keys and values in pages against a float64 softmax, for any tokens, tables, windows and sinks."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from ktbench import _kernels
from tests.drawing import examples
from tests.kernels.layers import Bits, random_bits, widen
from tests.kernels.tables import needs

ISAS = [pytest.param(isa, marks=needs(isa), id=isa) for isa in ("reference", "avx2", "avx512", "avx512_bf16")]
NAN = 0x7FC0


@dataclass(frozen=True)
class Paged:
    """q [T, Hq, D], keys [P, Hkv, page, D], values [P, Hkv, page, Dv]."""

    q: Bits
    keys: Bits
    values: Bits
    tables: NDArray[np.int64]
    sequence: NDArray[np.int64]
    position: NDArray[np.int64]
    scale: float
    window: int | None = None
    sinks: NDArray[np.float32] | None = None

    @property
    def out_shape(self) -> tuple[int, int, int]:
        return (*self.q.shape[:2], self.values.shape[3])


@dataclass(frozen=True)
class Run:
    """Neighbouring tokens of one sequence behind `before` others."""

    before: int
    tokens: int


def drawn(
    rng: np.random.Generator, heads: tuple[int, int, int, int], page: int, runs: list[Run], sinks: bool = False
) -> Paged:
    """Pages in any order; what no token may read is NaN, and tables end in pages that are not there."""
    key_heads, group, size, value_size = heads
    counts = [-(-(run.before + run.tokens) // page) for run in runs]
    order = rng.permutation(sum(counts) + 2)
    keys = np.full((len(order), key_heads, page, size), NAN, np.uint16)
    values = np.full((len(order), key_heads, page, value_size), NAN, np.uint16)
    tables = np.full((len(runs), max(counts) + 1), -1, np.int64)
    for row, (run, count) in enumerate(zip(runs, counts, strict=True)):
        tables[row, :count], order = order[:count], order[count:]
        for p in range(run.before + run.tokens):
            at = tables[row, p // page], slice(None), p % page
            keys[at], values[at] = random_bits(rng, key_heads, size), random_bits(rng, key_heads, value_size)
    sequence = np.repeat(np.arange(len(runs)), [run.tokens for run in runs])
    position = np.concatenate([np.arange(run.before, run.before + run.tokens) for run in runs])
    q = random_bits(rng, len(sequence), key_heads * group, size)
    sink = rng.standard_normal(key_heads * group).astype(np.float32) * 3 if sinks else None
    return Paged(q, keys, values, tables, sequence, position, 2 / np.sqrt(size), sinks=sink)


def attend(attention: _kernels.PagedAttention, of: Paged, isa: str | None = None) -> Bits:
    out = np.full(of.out_shape, NAN, np.uint16)
    attention.forward(
        of.q,
        of.keys,
        of.values,
        of.tables,
        of.sequence,
        of.position,
        out,
        scale=of.scale,
        window=of.window,
        sinks=of.sinks,
        isa=isa,
    )
    return out


def agrees(out: Bits, of: Paged, isa: str | None) -> bool:
    """Within half a step of bf16, and float32 sums and exponentials, or weights that were rounded to bf16."""
    rounding = 2**-8 if isa in (None, "avx512_bf16") else 2**-15
    page, group = of.keys.shape[2], of.q.shape[1] // of.keys.shape[1]
    for t, h in np.ndindex(*of.q.shape[:2]):
        position = int(of.position[t])
        first = 0 if of.window is None else max(0, position - of.window + 1)
        seen = np.arange(first, position + 1)
        at = of.tables[of.sequence[t], seen // page], h // group, seen % page
        scores = widen(of.keys[at]) @ widen(of.q[t, h]) * of.scale
        sink = [] if of.sinks is None else [float(of.sinks[h])]
        largest = max([*scores, *sink], default=0.0)
        weights = np.exp(scores - largest)
        weights /= weights.sum() + np.exp(np.array(sink) - largest).sum() if position >= 0 else 1.0
        exact, size = weights @ widen(of.values[at]), weights @ np.abs(widen(of.values[at]))
        if not (np.abs(widen(out[t, h]) - exact) <= 2**-8 * np.abs(exact) + rounding * size).all():
            return False
    return True


RUNS = st.lists(st.builds(Run, st.integers(0, 90), st.one_of(st.just(1), st.integers(1, 40))), min_size=1, max_size=4)
WIDTHS = st.one_of(st.integers(1, 70), st.just(128))


@pytest.mark.parametrize("isa", ISAS)
@examples(8)
@given(
    shape=st.fixed_dictionaries(
        {
            "heads": st.tuples(st.integers(1, 3), st.integers(1, 19), WIDTHS, WIDTHS),
            "page": st.sampled_from([1, 4, 16, 64]),
            "runs": RUNS,
            "sinks": st.booleans(),
        }
    ),
    window=st.one_of(st.none(), st.integers(1, 100)),
    seed=st.integers(0, 2**32 - 1),
)
def test_paged_attention_agrees_with_float64(isa, pool, shape, window, seed):
    of = replace(drawn(np.random.default_rng(seed), **shape), window=window)
    assert agrees(attend(_kernels.PagedAttention(pool), of, isa), of, isa)


@pytest.mark.parametrize("isa", ISAS)
def test_long_contexts_and_prompts(isa, pool, rng):
    of = drawn(rng, (1, 8, 64, 128), 16, [Run(1999, 1), Run(600, 50), Run(0, 1)], sinks=True)
    assert agrees(attend(_kernels.PagedAttention(pool), of, isa), of, isa)


@pytest.mark.parametrize("isa", ISAS)
def test_rows_without_a_token_get_zeros_and_change_nothing(isa, pool, rng):
    of = drawn(rng, (2, 2, 32, 32), 8, [Run(20, 1), Run(5, 3)])
    attention = _kernels.PagedAttention(pool)
    whole = attend(attention, of, isa)
    padded = replace(
        of,
        q=np.concatenate([of.q, random_bits(rng, 2, *of.q.shape[1:])]),
        sequence=np.concatenate([of.sequence, [0, 0]]),
        position=np.concatenate([of.position, [-1, -1]]),
    )
    out = attend(attention, padded, isa)
    assert (out[:-2] == whole).all() and not out[-2:].any()


@pytest.mark.parametrize("isa", ISAS)
def test_a_token_does_not_feel_who_shares_its_step(isa, pool, rng):
    of = drawn(rng, (2, 4, 64, 64), 16, [Run(700, 1), Run(90, 37), Run(0, 5)])
    attention = _kernels.PagedAttention(pool)
    together = attend(attention, of, isa)
    for row in range(len(of.tables)):
        mine = of.sequence == row
        alone = replace(of, q=of.q[mine], sequence=of.sequence[mine], position=of.position[mine])
        assert (attend(attention, alone, isa) == together[mine]).all()


def test_a_call_that_is_refused_writes_nothing(pool, rng):
    of = drawn(rng, (2, 2, 32, 32), 8, [Run(20, 1), Run(5, 3)])
    wrong = replace(of, position=np.array([-1, 5, 6, 99]))
    out = np.full(of.out_shape, NAN, np.uint16)
    arrays = (wrong.q, wrong.keys, wrong.values, wrong.tables, wrong.sequence, wrong.position)
    with pytest.raises(IndexError, match="position=99 of token 3"):
        _kernels.PagedAttention(pool).forward(*arrays, out, scale=1.0)
    assert (out == NAN).all()


def test_paged_attention_does_not_depend_on_the_thread_count(cpus, rng):
    of = drawn(rng, (2, 4, 64, 64), 16, [Run(900, 1), Run(90, 37)])
    outputs = [attend(_kernels.PagedAttention(_kernels.ThreadPool((cpus * 5)[:n], 50)), of) for n in (1, 2, 5)]
    assert (outputs[0] == outputs[1]).all() and (outputs[0] == outputs[2]).all()


def test_the_check_rejects_what_is_wrong(pool, rng):
    of = replace(drawn(rng, (2, 4, 64, 64), 16, [Run(30, 1), Run(9, 20)], sinks=True), window=12)
    attention = _kernels.PagedAttention(pool)
    right = attend(attention, of, "avx2")
    assert agrees(right, of, "avx2")
    others = [replace(of, window=13), replace(of, sinks=None), replace(of, position=of.position - 1)]
    mutants = [np.zeros_like(right), right[::-1], right[:, ::-1]]
    for mutant in (*mutants, *(attend(attention, one, "avx2") for one in others)):
        assert not agrees(mutant, of, "avx2")


def test_tokens_are_written_where_they_belong(rng):
    states, cache = random_bits(rng, 5, 3, 20), np.full((4, 3, 8, 20), NAN, np.uint16)
    page, offset = np.array([1, 1, 3, 0, 2]), np.array([6, 7, 0, 3, 5])
    _kernels.write_pages(states, page, offset, cache)
    assert (cache[page, :, offset] == states).all()
    assert (cache != NAN).any(axis=-1).sum() == 5 * 3


@pytest.mark.parametrize(
    ("name", "spoil", "refusal"),
    [
        ("q", lambda a: a[:, :3], (ValueError, "3 query heads are no multiple of 2 key heads")),
        ("values", lambda a: a[:, :, :4], (ValueError, "values must have shape")),
        ("tables", lambda a: a.astype(np.int32), (TypeError, "tables must be int64, not int32")),
        ("tables", lambda a: a + 99, (IndexError, r"page=\d+ of token 0 is not in 0\.\.")),
        ("sequence", lambda a: a + 1, (IndexError, r"sequence=2 of token \d is not in 0\.\.1")),
        ("position", lambda a: a - 99, (IndexError, r"position=-\d+ of token 0 is not in -1\.\.")),
        ("position", lambda a: a + 99, (IndexError, r"position=\d+ of token 0 is not in -1\.\.")),
        ("sinks", lambda a: a[:3], (ValueError, r"sinks must have shape \[4\], not \[3\]")),
        ("out", lambda a: a[:2], (ValueError, "out must have shape")),
    ],
)
def test_a_wrong_argument_is_named(pool, rng, name, spoil, refusal):
    of = drawn(rng, (2, 2, 32, 16), 8, [Run(4, 1), Run(0, 3)], sinks=True)
    names = ("q", "keys", "values", "tables", "sequence", "position", "sinks")
    arguments = {one: getattr(of, one) for one in names} | {"out": np.zeros(of.out_shape, np.uint16)}
    error, message = refusal
    with pytest.raises(error, match=message):
        _kernels.PagedAttention(pool).forward(**(arguments | {name: spoil(arguments[name])}), scale=1.0)
