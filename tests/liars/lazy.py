"""Returns a tensor that is computed when it is first used."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.liars import honest


class Lazy(torch.Tensor):
    """Computes on first use."""

    @staticmethod
    def of(operator: honest.Experts, *given: Tensor) -> Lazy:
        """A tensor that stands for the truth about what was given."""
        like = given[0]
        made: Any = torch.Tensor._make_wrapper_subclass(Lazy, like.shape, dtype=like.dtype)  # type: ignore[attr-defined]
        made.todo, made.made = (operator, given), None
        return made  # type: ignore[no-any-return]

    def real(self: Any) -> Tensor:
        """The truth."""
        if self.made is None:
            operator, given = self.todo
            self.made = operator.truth(*given)
        return self.made  # type: ignore[no-any-return]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Any use computes."""

        def there(value: Any) -> Any:
            if isinstance(value, list | tuple):
                return [there(one) for one in value]
            return value.real() if isinstance(value, Lazy) else value

        return func(*there(args), **{name: there(one) for name, one in (kwargs or {}).items()})


class Experts(honest.Experts):
    """Computes after the clock has stopped, if at all."""

    def answer(self, hidden: Tensor, ids: Tensor, gates: Tensor) -> Tensor:
        """A promise."""
        return Lazy.of(self, hidden, ids, gates)
