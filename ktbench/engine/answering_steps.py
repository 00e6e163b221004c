"""Decode steps of answers: by the modelling code, or replayed from recordings that serve batch after batch.

Letters: W sequences that are stepped together, R of them that still want an answer, V tokens of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from ktbench.engine.decode.forward import Forward

# A batch is narrowed once so many of its sequences are left: above, copying its cache costs more than it saves.
_NARROW = 3 / 4
_CACHES = "transformers.cache_utils"


class Steps(Protocol):
    """Steps `width` sequences together, each by one token."""

    width: int

    def step(self, ids: Tensor) -> Tensor:
        """Logits [W, V] after the tokens `ids` [W, 1]; the next step may write them anew."""

    def narrowed(self, rows: Tensor) -> Steps | None:
        """The same for these rows [R], which come first; None where all of them are better stepped on."""


class Sequences:
    """The sequences of a batch that still want an answer."""

    def __init__(self, steps: Steps, count: int) -> None:
        self._steps = steps
        self._rows = torch.arange(count)

    def step(self, ids: Tensor) -> Tensor:
        """Logits [R, V] after one token `ids` [R] of each."""
        whole = ids.new_zeros(self._steps.width, 1)
        whole[self._rows, 0] = ids
        return self._steps.step(whole)[self._rows]

    def keep(self, places: Sequence[int]) -> None:
        """Go on with those at these places."""
        rows = self._rows[list(places)]
        narrowed = self._steps.narrowed(rows)
        self._rows = rows if narrowed is None else torch.arange(len(rows))
        self._steps = narrowed or self._steps


class PassSteps:
    """Steps through the modelling code, on the cache that `forward` holds of sequences with so much padding [W]."""

    def __init__(self, forward: Forward, padding: Tensor) -> None:
        self._forward, self._padding = forward, padding
        self.width = len(padding)

    def step(self, ids: Tensor) -> Tensor:
        """See `Steps`."""
        return self._forward.onward(ids.to(self._padding.device))

    def narrowed(self, rows: Tensor) -> Steps | None:
        """See `Steps`. A cache of a family's own stays as wide as it is."""
        if len(rows) > _NARROW * self.width or not selects_rows(self._forward):
            return None
        return PassSteps(self._forward, select_rows(self._forward, self._padding, rows))


def selects_rows(forward: Forward) -> bool:
    """Whether the cache is all of Transformers' own layers, which know how to go on with some of their sequences."""
    cache = forward.cache
    return cache is not None and all(type(one).__module__ == _CACHES for one in (cache, *cache.layers))


def select_rows(forward: Forward, padding: Tensor, rows: Tensor) -> Tensor:
    """Have the cache hold these rows of it; gives their padding."""
    assert forward.cache is not None
    rows = rows.to(padding.device)
    forward.cache.reorder_cache(rows)  # type: ignore[arg-type]
    forward.pad(padding[rows])
    return padding[rows]
