"""A pending tensor: fetched once, by whoever needs it first, and not before."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from ktbench.engine.decode.lazy import LazyTensor, is_pending, resolve_lazy

pytestmark = pytest.mark.usefixtures("inference")


class Source:
    """Numbers that are computed on request, and how often they were."""

    def __init__(self, log: list[str] | None = None, name: str = "") -> None:
        self.value = torch.randn(4, 6)
        self.fetches = 0
        self._log, self._name = log, name

    def later(self, *, waits: bool = True) -> LazyTensor:
        return LazyTensor(self._give, self.value.shape, self.value.dtype, self.value.device, waits=waits)

    def _give(self) -> Tensor:
        self.fetches += 1
        if self._log is not None:
            self._log.append(self._name)
        return self.value.clone()


def test_shape_and_type_are_known_before_the_value() -> None:
    source = Source()
    pending = source.later()
    assert (pending.shape, pending.dtype, pending.device) == ((4, 6), torch.float32, torch.device("cpu"))
    assert is_pending([{"x": pending}]) and not is_pending([source.value])
    assert source.fetches == 0


@pytest.mark.parametrize(
    "view",
    [
        lambda t: t.view(2, 2, 6),
        lambda t: t.reshape(24),
        lambda t: t.unsqueeze(0),
        lambda t: t.view(1, 4, 6).squeeze(0),
    ],
)
def test_views_wait_too(view: Callable[[Tensor], Tensor]) -> None:
    source = Source()
    seen = view(source.later())
    assert source.fetches == 0
    assert seen.shape == view(source.value).shape
    assert torch.equal(seen + 0, view(source.value))
    assert source.fetches == 1


@pytest.mark.parametrize(
    "use",
    [
        lambda t, x: t + x,
        lambda t, x: x * t,
        torch.nn.functional.linear,
        lambda t, x: torch.cat([x, t]),
        lambda t, x: t.to(torch.bfloat16),
        lambda t, x: t[:2],
        lambda t, x: torch.sigmoid(t).sum(),
    ],
)
def test_operations_fetch_and_give_plain_tensors(use: Callable[[Tensor, Tensor], Tensor]) -> None:
    source, other = Source(), torch.randn(4, 6)
    given = use(source.later(), other)
    assert not isinstance(given, LazyTensor)
    assert torch.equal(given, use(source.value, other))
    assert source.fetches == 1


def test_is_fetched_once_however_often_it_is_used() -> None:
    source = Source()
    pending = source.later()
    _ = pending + 1, pending.view(24) * 2, pending.sum()
    assert source.fetches == 1


def test_in_place_addition_ends_up_in_the_name_it_was_done_to() -> None:
    source, other = Source(), torch.randn(4, 6)
    pending: Tensor = source.later()
    pending += other
    assert torch.equal(pending * 1, source.value + other)


def test_what_is_computed_here_comes_before_what_is_waited_for() -> None:
    log: list[str] = []
    experts, shared = Source(log, "experts"), Source(log, "shared")
    total = experts.later() + shared.later(waits=False).view(4, 6)
    assert log == ["shared", "experts"]
    assert torch.equal(total, experts.value + shared.value)


def test_settled_leaves_other_content_alone() -> None:
    source = Source()
    first, rest = resolve_lazy((source.later(), [3, None, "x"]))
    assert torch.equal(first, source.value)
    assert rest == [3, None, "x"]


def test_an_error_while_fetching_reaches_the_user() -> None:
    def fail() -> Tensor:
        raise RuntimeError("the host failed")

    pending = LazyTensor(fail, (2,), torch.float32, torch.device("cpu"))
    with pytest.raises(RuntimeError, match="the host failed"):
        _ = pending + 1
