"""A tensor that is still being computed elsewhere: its first use waits for it.

Modelling code stays as it is: the experts are submitted when it calls them, the shared expert runs when its output is
needed, and the sum of the two waits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_any, tree_leaves, tree_map

Fetch = Callable[[], Tensor]

# Other shapes of the same memory: they can wait, too.
_VIEWS = {
    torch.ops.aten.view.default,
    torch.ops.aten.reshape.default,
    torch.ops.aten._unsafe_view.default,
    torch.ops.aten.unsqueeze.default,
    torch.ops.aten.squeeze.dim,
    torch.ops.aten.alias.default,
    torch.ops.aten.detach.default,
}


class LazyTensor(Tensor):
    """Stands for what `fetch` gives, a tensor of this shape, dtype and device; `fetch` is called once at most.

    `waits` is whether that waits for the host role: of several tensors, those that do are fetched last.
    """

    _fetch: Fetch | None
    _value: Tensor | None
    _waits: bool

    @staticmethod
    def __new__(
        cls, fetch: Fetch, shape: Sequence[int], dtype: torch.dtype, device: torch.device, *, waits: bool = True
    ) -> LazyTensor:
        """Nothing is computed yet."""
        wrapper = Tensor._make_wrapper_subclass
        made: LazyTensor = wrapper(cls, shape, dtype=dtype, device=device)
        made._fetch, made._value, made._waits = fetch, None, waits
        return made

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def fetch(self) -> Tensor:
        """The tensor itself; waits for it the first time."""
        if self._fetch is not None:
            fetch, self._fetch = self._fetch, None
            self._value = fetch()
        assert self._value is not None
        return self._value

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Views of what is pending are pending; everything else waits for its inputs."""
        if func in _VIEWS and isinstance(args[0], LazyTensor) and args[0]._value is None:
            return _view(func, args)
        args, named = resolve_lazy((args, dict(kwargs or {})))
        return func(*args, **named)


def _view(func: Any, args: tuple[Any, ...]) -> LazyTensor:
    pending: LazyTensor = args[0]
    shape = func(torch.empty(pending.shape, dtype=pending.dtype, device="meta"), *args[1:]).shape
    value = pending.fetch
    return LazyTensor(lambda: func(value(), *args[1:]), shape, pending.dtype, pending.device, waits=pending._waits)


def is_pending(content: Any) -> bool:
    """Whether a nest of arguments holds a tensor that has yet to come."""
    return tree_any(lambda value: isinstance(value, LazyTensor), content)


def resolve_lazy(content: Any) -> Any:
    """A nest of arguments with every pending tensor fetched: what is computed here before what is waited for."""
    for value in tree_leaves(content):
        if isinstance(value, LazyTensor) and not value._waits:
            value.fetch()
    return tree_map(lambda value: value.fetch() if isinstance(value, LazyTensor) else value, content)
