"""Native ways to do what was recorded give what PyTorch gives, and leave alone what they do not fit."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn.functional import embedding, linear

pytest.importorskip("ktbench._kernels", reason="the kernel extension is not built", exc_type=ImportError)

from ktbench.engine.decode.lowering import Lowering
from ktbench.engine.decode.program import CallRecorder, NotRecordable, StepRecorder
from ktbench.engine.decode.timeline import ModuleWatch
from ktbench.engine.dense import DenseOperators
from tests.engine.engines import needs_vector

pytestmark = pytest.mark.usefixtures("inference")

VECTOR = needs_vector()
BF16 = torch.bfloat16
TOLERANCE = 0.005  # bf16 rounds at 2^-9


def lowering() -> Lowering:
    return Lowering(DenseOperators(1, "bf16", CallRecorder(), keeps_original=True))


def recorded(code: Callable[[], Tensor], lower: Lowering | None, *constants: Tensor) -> tuple[StepRecorder, Tensor]:
    recorder = StepRecorder(ModuleWatch(), constants, lower)
    with recorder:
        result = code()
    return recorder, result


def is_near(seen: Tensor, truth: Tensor) -> bool:
    return bool((seen.double() - truth).norm() < TOLERANCE * truth.norm())


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).bfloat16()


def is_native(program: StepRecorder) -> bool:
    """Whether the only call is no operation of PyTorch."""
    [call] = program._calls
    called = call.func if isinstance(call, partial) else call
    return not isinstance(called, torch._ops.OpOverload) and "_compute_and_copy" not in str(called)


def record(code: Callable[[], Tensor], *constants: Tensor) -> tuple[StepRecorder, Tensor, bool]:
    """The program, its result, and whether its only call is native."""
    program, result = recorded(code, lowering(), *constants)
    return program, result, is_native(program)


@pytest.mark.parametrize("bias", [False, True], ids=["", "bias"])
@pytest.mark.parametrize("tokens", [1, 3])
@pytest.mark.parametrize("rows", [1, 8, 40])
def test_products_with_a_constant_matrix(tokens: int, rows: int, bias: bool) -> None:
    x, weight, offset = drawn(tokens, 64), drawn(rows, 64), drawn(rows) if bias else None
    constants = [weight] if offset is None else [weight, offset]
    program, result, native = record(lambda: linear(x, weight, offset), *constants)
    assert native
    for _ in range(2):
        x.copy_(torch.randn(tokens, 64))
        program.replay()
        truth = x.double() @ weight.double().T + (0 if offset is None else offset.double())
        assert is_near(result, truth)


def test_a_matrix_is_packed_once() -> None:
    x, weight, lower = drawn(1, 64), drawn(8, 64), lowering()
    for _ in range(2):
        recorded(lambda: linear(x, weight), lower, weight)
    assert len(lower._packed) == 1


def test_what_parameters_alone_decide_may_not_change() -> None:
    """A replay would go on from what the step before left there."""
    x, weight = torch.ones(4), torch.arange(4.0)
    for code in (lambda: torch.zeros_like(weight).add_(x), lambda: weight.mul_(1), lambda: (weight * 2).add_(x)):
        with pytest.raises(NotRecordable, match="computed from those alone"):
            recorded(code, None, weight)
    program, result = recorded(lambda: (weight * x).add_(weight * 2), None, weight)
    x.fill_(3)
    program.replay()
    assert torch.equal(result, weight * 5)


@VECTOR
def test_bf16_sums_are_native() -> None:
    a, b = torch.randn(3, 1, 65, dtype=BF16), torch.randn(3, 1, 65, dtype=BF16)
    program, result, native = record(lambda: a + b)
    a.copy_(torch.randn(a.shape))
    program.replay()
    assert native
    assert torch.equal(result, a + b)


@VECTOR
@pytest.mark.parametrize("dtype", [BF16, torch.float32])
def test_rows_of_an_embedding_are_native(dtype: torch.dtype) -> None:
    weight, ids = torch.randn(50, 24, dtype=dtype), torch.tensor([[3], [7]])
    program, result, native = record(lambda: embedding(ids, weight, padding_idx=3), weight)
    ids[:, 0] = torch.tensor([49, 0])
    program.replay()
    assert native
    assert torch.equal(result, weight[ids])


@VECTOR
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


SQUARE, TABLE, IDS = drawn(4, 4), drawn(50, 24), torch.tensor([3, 2])
# Code, what it reads, and how many of that, from the end, are constants.
LEFT: dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...], int]] = {
    "product": (lambda x: x * x, (SQUARE,), 0),
    "product with a wide matrix": (linear, (drawn(1, 64), drawn(1025, 64)), 1),
    "sum with a number": (lambda x: x + 1, (SQUARE,), 0),
    "sum that broadcasts": (lambda x: x + x[:1], (SQUARE,), 0),
    "sum of transposed": (lambda x: x.T + x.T, (SQUARE,), 0),
    "sum with a factor": (lambda x: torch.add(x, x, alpha=2), (SQUARE,), 0),
    "sum of strided": (lambda x: x[:, :2] + x[:, 2:], (SQUARE,), 0),
    "long sum": (lambda x: x + x, (torch.ones(16_385, dtype=BF16),), 0),
    "float32 sum": (lambda x: x + x, (torch.ones(4),), 0),
    "int64 sum": (lambda x: x + x, (torch.ones(4, dtype=torch.int64),), 0),
    "columns": (lambda table, ids: table[:, ids], (TABLE, IDS), 0),
    "two indices": (lambda table, ids: table[ids, ids], (TABLE, IDS), 0),
    "rows of transposed": (lambda table, ids: table.T[ids], (TABLE, IDS), 0),
    "rows of three axes": (lambda table, ids: table[ids], (drawn(5, 10, 24), IDS), 0),
    "rows of doubles": (lambda table, ids: table[ids], (TABLE.double(), IDS), 0),
    "rows by int32": (lambda table, ids: table[ids], (TABLE, IDS.int()), 0),
    "rows by strided ids": (lambda table, ids: table[ids[::2]], (TABLE, torch.tensor([3, 2, 1])), 0),
    "rows from the end": (lambda table, ids: table[ids], (TABLE, torch.tensor([-1, 2])), 0),
}


@VECTOR
@pytest.mark.parametrize("name", LEFT)
def test_other_operations_are_left_to_pytorch(name: str) -> None:
    code, given, constants = LEFT[name]
    inputs = [one.clone() for one in given]
    program, result, native = record(lambda: code(*inputs), *inputs[len(inputs) - constants :])
    inputs[0].neg_()
    program.replay()
    assert not native
    assert torch.equal(result, code(*inputs))


@VECTOR
def test_a_product_needs_a_constant_matrix() -> None:
    x, weight = torch.randn(2, 64, dtype=BF16), torch.randn(32, 64, dtype=BF16)
    assert record(lambda: linear(x, weight), weight)[2]
    program, result, native = record(lambda: linear(x, weight))
    assert not native
    weight.neg_()
    program.replay()
    assert torch.equal(result, linear(x, weight))
