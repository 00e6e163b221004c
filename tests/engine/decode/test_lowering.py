"""Native ways to do what was recorded give what PyTorch gives, and leave alone what they do not fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("ktbench._kernels", reason="the kernel extension is not built", exc_type=ImportError)

from ktbench.engine.decode.lowering import Lowering
from ktbench.engine.decode.program import CallRecorder, NotRecordable, Program, StepRecorder
from ktbench.engine.decode.timeline import Watch
from ktbench.engine.dense import DenseHost

TOLERANCE = 0.005  # bf16 rounds at 2^-9


@pytest.fixture(autouse=True)
def _inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


@pytest.fixture
def lowering() -> Lowering:
    return Lowering(DenseHost(1, "bf16", CallRecorder(), keeps_original=True))


def recorded(code: Callable[[], Tensor], lower: Lowering | None, *constants: Tensor) -> tuple[Program, Tensor]:
    recorder = StepRecorder(Watch(), constants, lower)
    with recorder:
        result = code()
    return recorder.program(), result


def is_near(seen: Tensor, truth: Tensor) -> bool:
    return bool((seen.double() - truth).norm() < TOLERANCE * truth.norm())


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).bfloat16()


def is_native(program: Program) -> bool:
    """Whether the only call is none of PyTorch's."""
    [call] = program._calls
    name: Any = getattr(call, "func", call)
    return "torch" not in str(type(name).__module__) and "_compute_and_copy" not in str(name)


@pytest.mark.parametrize("bias", [False, True], ids=["", "bias"])
@pytest.mark.parametrize("tokens", [1, 3])
@pytest.mark.parametrize("rows", [1, 8, 40])
def test_products_with_a_constant_matrix(lowering: Lowering, tokens: int, rows: int, bias: bool) -> None:
    x, weight, offset = drawn(tokens, 64), drawn(rows, 64), drawn(rows) if bias else None
    constants = [weight] if offset is None else [weight, offset]
    program, result = recorded(lambda: torch.nn.functional.linear(x, weight, offset), lowering, *constants)
    assert is_native(program)
    for _ in range(2):
        x.copy_(torch.randn(tokens, 64))
        program.replay()
        truth = x.double() @ weight.double().T + (0 if offset is None else offset.double())
        assert is_near(result, truth)


def test_a_matrix_is_packed_once(lowering: Lowering) -> None:
    x, weight = drawn(1, 64), drawn(8, 64)
    for _ in range(2):
        recorded(lambda: torch.nn.functional.linear(x, weight), lowering, weight)
    assert len(lowering._packed) == 1


def test_others_are_left_to_pytorch(lowering: Lowering) -> None:
    x, weight, wide = drawn(1, 64), drawn(8, 64), drawn(1025, 64)
    codes: list[tuple[Callable[[], Tensor], list[Tensor]]] = [
        (lambda: torch.nn.functional.linear(x, weight), []),  # which may change
        (lambda: torch.nn.functional.linear(x, wide), [wide]),
        (lambda: x * x, []),
    ]
    for code, constants in codes:
        program, result = recorded(code, lowering, *constants)
        assert not is_native(program)
        x.copy_(torch.randn(1, 64))
        program.replay()
        assert torch.equal(result, code())


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
