"""Products with one matrix a head against float64."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ktbench import _kernels
from tests.kernels.layers import Bits, random_bits, widen
from tests.kernels.tables import needs

ISAS = [pytest.param(isa, marks=needs(isa), id=isa) for isa in ("reference", "avx2", "avx512", "avx512_bf16")]


@dataclass(frozen=True)
class Product:
    """x [B, H, N] on weights [H, M, N], or transposed x [B, H, M]."""

    x: Bits
    weights: Bits
    transposed: bool


def random_product(rng: np.random.Generator, sizes: tuple[int, int, int, int], transposed: bool) -> Product:
    sequences, heads, rows, size = sizes
    x = random_bits(rng, sequences, heads, rows if transposed else size)
    return Product(x, random_bits(rng, heads, rows, size), transposed)


def multiply(of: Product, team: _kernels.Team, isa: str | None = None) -> Bits:
    out = np.full((*of.x.shape[:2], of.weights.shape[2 if of.transposed else 1]), 0x7FC0, np.uint16)
    _kernels.multiply_heads(of.x, of.weights, out, team, transposed=of.transposed, isa=isa)
    return out


def agrees(out: Bits, of: Product) -> bool:
    """Within half a step of bf16, and float32 sums."""
    formula = "bhm,hmn->bhn" if of.transposed else "bhn,hmn->bhm"
    x, weights = widen(of.x).astype(np.float64), widen(of.weights).astype(np.float64)
    exact, size = np.einsum(formula, x, weights), np.einsum(formula, np.abs(x), np.abs(weights))
    return bool((np.abs(widen(out) - exact) <= 2**-8 * np.abs(exact) + 2**-16 * size).all())


SIZES = st.tuples(
    st.integers(1, 20), st.integers(1, 5), *[st.one_of(st.integers(1, 150), st.sampled_from([128, 512]))] * 2
)


@pytest.mark.parametrize("isa", ISAS)
@given(sizes=SIZES, transposed=st.booleans(), seed=st.integers(0, 2**32 - 1))
def test_products_agree_with_float64(isa, pool, sizes, transposed, seed):
    of = random_product(np.random.default_rng(seed), sizes, transposed)
    assert agrees(multiply(of, pool, isa), of)


@pytest.mark.parametrize("transposed", [False, True])
def test_the_check_of_products_rejects_what_is_wrong(transposed, pool, rng):
    of = random_product(rng, (2, 3, 70, 70), transposed)
    right = multiply(of, pool)
    swapped = multiply(Product(of.x, of.weights, not transposed), pool)
    for mutant in (np.zeros_like(right), right[::-1], right[:, ::-1], right[:, :, ::-1], swapped):
        assert not agrees(mutant, of)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("heads", [1, 3, 64])
def test_products_do_not_depend_on_the_thread_count(heads, transposed, cpus, rng):
    of = random_product(rng, (3, heads, 200, 330), transposed)
    outputs = [multiply(of, _kernels.ThreadPool((cpus * 5)[:n], 50)) for n in (1, 2, 5)]
    assert (outputs[0] == outputs[1]).all() and (outputs[0] == outputs[2]).all()


@pytest.mark.parametrize("transposed", [False, True])
def test_strided_products(transposed, pool, rng):
    """Rows of keys out of a matrix of keys and values, x and out as parts of wider arrays."""
    of = random_product(rng, (2, 3, 48, 64), transposed)
    both, wide = np.full((3, 90, 80), 0x7FC0, np.uint16), np.full((2, 3, 99), 0x7FC0, np.uint16)
    both[:, 5:53, :64] = of.weights
    wide[:, :, 7 : 7 + of.x.shape[2]] = of.x
    out = np.zeros((2, 3, 100), np.uint16)
    part = out[:, :, 3 : 3 + (64 if transposed else 48)]
    x, weights = wide[:, :, 7 : 7 + of.x.shape[2]], both[:, 5:53, :64]
    _kernels.multiply_heads(x, weights, part, pool, transposed=transposed)
    assert (part == multiply(of, pool)).all()
    assert not out[:, :, :3].any() and not out[:, :, 3 + part.shape[2] :].any()


@pytest.mark.parametrize(
    ("name", "spoil", "error"),
    [
        ("x", lambda a: a.astype(np.float32), TypeError),
        ("x", lambda a: a[:, :1], ValueError),
        ("x", lambda a: a[:, :, :5], ValueError),
        ("weights", lambda a: a[0], ValueError),
        ("weights", lambda a: a[:, :0], ValueError),
        ("weights", lambda a: np.repeat(a, 2, 2)[:, :, ::2], ValueError),
        ("out", lambda a: a[:1], ValueError),
        ("out", lambda a: a[:, :, :5], ValueError),
    ],
)
def test_a_wrong_argument_of_a_product_is_named(pool, rng, name, spoil, error):
    of = random_product(rng, (2, 3, 16, 32), transposed=False)
    arguments = {"x": of.x, "weights": of.weights, "out": np.zeros((2, 3, 16), np.uint16)}
    with pytest.raises(error, match=f"^{name}"):
        _kernels.multiply_heads(**(arguments | {name: spoil(arguments[name])}), team=pool)
