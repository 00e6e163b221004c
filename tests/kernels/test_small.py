"""Small operations of a decode step against PyTorch's own, bit for bit where they are defined that far."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from ktbench._kernels import SmallCall
from tests.kernels.layers import Bits, bits_of, tensor, to_bf16, widen

torch = pytest.importorskip("torch")

SEEDS = st.integers(0, 2**32 - 1)
UNWRITTEN = 0x7FC0


def any_bits(rng: np.random.Generator, *shape: int) -> Bits:
    """Every finite bf16 and both infinities, each as likely as any other."""
    magnitude = rng.integers(0, 0x7F81, shape)
    return (magnitude | rng.integers(0, 2, shape) << 15).astype(np.uint16)


@given(shape=st.lists(st.integers(0, 40), min_size=1, max_size=3), seed=SEEDS, alias=st.booleans())
def test_add_is_that_of_pytorch(shape: list[int], seed: int, alias: bool) -> None:
    rng = np.random.default_rng(seed)
    a, b = any_bits(rng, *shape), any_bits(rng, *shape)
    truth = tensor(a) + tensor(b)
    out = a if alias else np.full(shape, UNWRITTEN, np.uint16)
    SmallCall.add(a, b, out).forward()
    assert torch.equal(tensor(out).isnan(), truth.isnan())
    assert (out == bits_of(truth))[~truth.isnan().numpy()].all()


def test_add_rounds_to_even_and_keeps_nan() -> None:
    a = np.array([0x3F80, 0x3F81, 0x7FC1, 0x7F80], np.uint16)  # 1, 1 + 2^-7, NaN, infinity
    b = np.array([0x3B80, 0x3B80, 0x3F80, 0xFF80], np.uint16)  # 2^-8, 2^-8, 1, -infinity
    out = np.zeros(4, np.uint16)
    SmallCall.add(a, b, out).forward()
    assert list(out[:2]) == [0x3F80, 0x3F82]
    assert np.isnan(widen(out[2:])).all()


def test_a_call_reads_its_arrays_anew() -> None:
    a, b, out = (np.zeros(5, np.uint16) for _ in range(3))
    call = SmallCall.add(a, b, out)
    a[:], b[:] = to_bf16(np.full(5, 1.5)), to_bf16(np.full(5, 2.0))
    del b
    call.forward()
    assert (widen(out) == 3.5).all()


@given(
    dtype=st.sampled_from([np.uint16, np.float32, np.int32, np.uint8]),
    rows=st.integers(1, 30),
    width=st.integers(0, 70),
    tokens=st.integers(0, 9),
    seed=SEEDS,
)
def test_take_rows_is_indexing(dtype: Any, rows: int, width: int, tokens: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    table = rng.integers(0, 200, (rows, width)).astype(dtype)
    ids, out = rng.integers(0, rows, tokens), np.zeros((tokens, width), dtype)
    SmallCall.take_rows(table, ids, out).forward()
    assert (out == table[ids]).all()


@pytest.mark.parametrize("wrong", [-1, 4, 2**40])
def test_take_rows_refuses_what_is_no_row_and_writes_nothing(wrong: int) -> None:
    table, out = np.ones((4, 3), np.uint16), np.zeros((2, 3), np.uint16)
    call = SmallCall.take_rows(table, np.array([1, wrong]), out)
    with pytest.raises(IndexError, match=rf"ids\[1\]={wrong} is none of 4 rows"):
        call.forward()
    assert not out.any()


def select(logits: Bits, top_k: int, dtype: Any, *, renormalised: bool) -> tuple[NDArray[np.int64], NDArray[Any]]:
    ids = np.full((len(logits), top_k), -1)
    weights = np.zeros(ids.shape, dtype)
    SmallCall.select_experts(logits, ids, weights, renormalised=renormalised).forward()
    return ids, weights


def selected(logits: Bits, top_k: int, *, renormalised: bool) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """In float64, of equal logits the lower id first."""
    x = widen(logits).astype(np.float64)
    ids = np.argsort(-x, axis=-1, kind="stable")[:, :top_k]
    softmax = np.exp(x - x.max(-1, keepdims=True))
    softmax /= softmax.sum(-1, keepdims=True)
    weights = np.take_along_axis(softmax, ids, -1)
    return ids, weights / weights.sum(-1, keepdims=True) if renormalised else weights


@given(
    tokens=st.integers(0, 5),
    experts=st.integers(1, 300),
    share=st.floats(0, 1),
    kinds=st.sampled_from([2, 9, 1000]),
    renormalised=st.booleans(),
    seed=SEEDS,
)
def test_selection_with_ties(
    tokens: int, experts: int, share: float, kinds: int, renormalised: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    top_k = 1 + int(share * (experts - 1))
    drawn = rng.integers(-kinds, kinds, (tokens, experts)) * (8 / kinds) * rng.choice([-1.0, 1.0], (tokens, experts))
    logits = to_bf16(drawn)  # zeros of both signs are among them
    truth, weight = selected(logits, top_k, renormalised=renormalised)
    ids, weights = select(logits, top_k, np.float32, renormalised=renormalised)
    assert (ids == truth).all()
    np.testing.assert_allclose(weights, weight, rtol=2e-5)
    same, rounded = select(logits, top_k, np.uint16, renormalised=renormalised)
    assert (same == ids).all()
    assert (rounded == bits_of(torch.from_numpy(weights).bfloat16())).all()


@pytest.mark.parametrize("renormalised", [False, True])
def test_selection_is_that_of_pytorch_where_no_logits_are_equal(renormalised: bool) -> None:
    rng = np.random.default_rng(3)
    every = to_bf16(np.linspace(-6, 6, 128))
    logits = np.stack([rng.permutation(every) for _ in range(50)])
    weight, truth = torch.softmax(tensor(logits), dim=-1, dtype=torch.float32).topk(8, dim=-1)
    if renormalised:
        weight /= weight.sum(dim=-1, keepdim=True)
    ids, weights = select(logits, 8, np.uint16, renormalised=renormalised)
    assert (ids == truth.numpy()).all()
    apart = np.abs(weights.astype(int) - bits_of(weight.bfloat16()))
    assert apart.max() <= 1
    assert (apart > 0).mean() < 0.01  # a float32 sum in another order may fall on the other side of a rounding


def test_masked_experts_weigh_nothing_and_nan_spoils_its_token_alone() -> None:
    logits = to_bf16(np.array([[1.0, -np.inf, 2.0], [1.0, 5.0, 2.0], [1.0, np.inf, 2.0]]))
    logits[1, 1] = 0xFFC0
    ids, weights = select(logits, 3, np.float32, renormalised=False)
    assert list(ids[0]) == [2, 0, 1]
    assert weights[0, 2] == 0
    assert np.isnan(weights[1:]).all()
    assert (np.sort(ids, axis=-1) == np.arange(3)).all()


A, IDS = np.zeros((2, 8), np.uint16), np.zeros((2, 3), np.int64)
FLOATS = np.zeros((2, 3), np.float32)
READ_ONLY = np.zeros((2, 8), np.uint16)
READ_ONLY.setflags(write=False)


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: SmallCall.add(A, A[:1], A), ValueError, "b must have shape"),
        (lambda: SmallCall.add(A, A, FLOATS), TypeError, "out must be uint16, not float32"),
        (lambda: SmallCall.add(A, A, READ_ONLY), ValueError, "out must be writeable"),
        (lambda: SmallCall.add(A[:, ::2], A[:, ::2], A[:, ::2]), ValueError, "a must be contiguous"),
        (lambda: SmallCall.take_rows(A[0], IDS[0], A), ValueError, "table must have shape"),
        (lambda: SmallCall.take_rows(A, IDS, A), ValueError, "ids must have shape"),
        (lambda: SmallCall.take_rows(A, IDS[0].astype(np.int32), A), TypeError, "ids must be int64"),
        (lambda: SmallCall.take_rows(A, IDS[0], A), ValueError, r"out must have shape \[3, 8\], not \[2, 8\]"),
        (lambda: SmallCall.take_rows(A.astype(object), IDS[0], A), TypeError, "table must hold numbers"),
        (lambda: SmallCall.take_rows(np.zeros((2, 8), "O,i8"), IDS[0], A), TypeError, "table must hold numbers"),
        (lambda: SmallCall.select_experts(A, IDS, A, renormalised=True), ValueError, "weights must have shape"),
        (lambda: SmallCall.select_experts(A, IDS[:1], FLOATS, renormalised=True), ValueError, "ids must have shape"),
        (lambda: SmallCall.select_experts(A[:, :0], IDS, FLOATS, renormalised=True), ValueError, "0 experts"),
        (
            lambda: SmallCall.select_experts(A[:, :2].copy(), IDS, FLOATS, renormalised=True),
            ValueError,
            r"top_k=3 is not in 1\.\.2",
        ),
        (
            lambda: SmallCall.select_experts(A, IDS, FLOATS.astype(np.float64), renormalised=True),
            TypeError,
            "weights must be float32, not float64",
        ),
    ],
)
def test_bad_arrays_are_refused(make: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        make()
