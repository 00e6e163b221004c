"""Which small operations of a recording become native calls, and that a replay gives PyTorch's own bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import embedding, linear

from tests.engine.engines import needs_avx512

pytestmark = needs_avx512()

BF16 = torch.bfloat16


@pytest.fixture(autouse=True)
def _inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


def record(code: Callable[[], Tensor], *constants: Tensor) -> tuple[Any, Tensor, bool]:
    """The program, its result, and whether its only call is no operation of PyTorch."""
    from ktbench.engine.decode.lowering import Lowering
    from ktbench.engine.decode.program import CallRecorder, StepRecorder
    from ktbench.engine.decode.timeline import Watch
    from ktbench.engine.dense import DenseHost

    recorder = StepRecorder(Watch(), constants, Lowering(DenseHost(1, "bf16", CallRecorder(), keeps_original=False)))
    with recorder:
        result = code()
    program = recorder.program()
    assert len(program) == 1
    call = program._calls[0]
    called = call.func if isinstance(call, partial) else call
    return program, result, not isinstance(called, torch._ops.OpOverload)


def test_bf16_sums_are_native() -> None:
    a, b = torch.randn(3, 1, 65, dtype=BF16), torch.randn(3, 1, 65, dtype=BF16)
    program, result, native = record(lambda: a + b)
    a.copy_(torch.randn(a.shape))
    program.replay()
    assert native
    assert torch.equal(result, a + b)


@pytest.mark.parametrize(
    "code",
    [
        lambda x: x + 1,
        lambda x: x + x[:1],
        lambda x: x.T + x.T,
        lambda x: torch.add(x, x, alpha=2),
        lambda x: x[:, :2] + x[:, 2:],
    ],
    ids=["a number", "broadcast", "transposed", "alpha", "strided"],
)
def test_other_sums_are_left(code: Callable[[Tensor], Tensor]) -> None:
    x = torch.randn(4, 4, dtype=BF16)
    program, result, native = record(lambda: code(x))
    x.copy_(torch.randn(4, 4))
    program.replay()
    assert not native
    assert torch.equal(result, code(x))


@pytest.mark.parametrize(("size", "dtype"), [(16_385, BF16), (4, torch.float32), (4, torch.int64)])
def test_long_sums_and_other_types_are_left(size: int, dtype: torch.dtype) -> None:
    x = torch.ones(size, dtype=dtype)
    assert not record(lambda: x + x)[2]


@pytest.mark.parametrize("dtype", [BF16, torch.float32])
def test_rows_of_an_embedding_are_native(dtype: torch.dtype) -> None:
    weight, ids = torch.randn(50, 24, dtype=dtype), torch.tensor([[3], [7]])
    program, result, native = record(lambda: embedding(ids, weight, padding_idx=3), weight)
    ids[:, 0] = torch.tensor([49, 0])
    program.replay()
    assert native
    assert torch.equal(result, weight[ids])


def test_rows_of_a_table_that_is_no_parameter_are_native() -> None:
    table, ids = torch.randn(50, 24, dtype=BF16), torch.tensor([[3], [7]])
    program, result, native = record(lambda: table[ids])
    ids[:, 0] = torch.tensor([49, 0])
    program.replay()
    assert native
    assert torch.equal(result, table[ids])
    ids[1, 0] = 50
    with pytest.raises(IndexError, match="is none of 50 rows"):
        program.replay()


OTHER_LOOK_UPS: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], Tensor, Tensor]] = {
    "columns": (lambda table, ids: table[:, ids], torch.randn(50, 24), torch.tensor([3, 2])),
    "two indices": (lambda table, ids: table[ids, ids], torch.randn(50, 24), torch.tensor([3, 2])),
    "transposed": (lambda table, ids: table.T[ids], torch.randn(50, 24), torch.tensor([3, 2])),
    "three axes": (lambda table, ids: table[ids], torch.randn(5, 10, 24), torch.tensor([3, 2])),
    "doubles": (lambda table, ids: table[ids], torch.randn(50, 24).double(), torch.tensor([3, 2])),
    "int32": (lambda table, ids: table[ids], torch.randn(50, 24), torch.tensor([3, 2]).int()),
    "strided ids": (lambda table, ids: table[ids[::2]], torch.randn(50, 24), torch.tensor([3, 2, 1])),
}


@pytest.mark.parametrize("name", OTHER_LOOK_UPS)
def test_other_look_ups_are_left(name: str) -> None:
    code, table, ids = OTHER_LOOK_UPS[name]
    program, result, native = record(lambda: code(table, ids))
    program.replay()
    assert not native
    assert torch.equal(result, code(table, ids))


def test_an_id_below_zero_counts_from_the_end() -> None:
    table, ids = torch.randn(50, 24), torch.tensor([-1, 2])
    _, result, native = record(lambda: table[ids])
    assert not native
    assert torch.equal(result, table[ids])


def test_a_product_needs_a_constant_matrix() -> None:
    x, weight = torch.randn(2, 64, dtype=BF16), torch.randn(32, 64, dtype=BF16)
    assert record(lambda: linear(x, weight), weight)[2]
    program, result, native = record(lambda: linear(x, weight))
    assert not native
    weight.neg_()
    program.replay()
    assert torch.equal(result, linear(x, weight))
