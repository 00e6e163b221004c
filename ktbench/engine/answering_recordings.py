"""Recorded decode steps that serve batch after batch: the cache is filled anew, the recording stays.

Letters: W sequences that are stepped together, N positions there is room for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicLayer

from ktbench.engine.answering_steps import Steps
from ktbench.engine.components import EngineComponents
from ktbench.engine.decode.step import LeanDecoding

# Some attention computes something for every position that there is room for, used or not.
_ROOM = 32
_NARROWER = 4  # a width is recorded for a quarter of the sequences, one for a quarter of those, ...
_KEPT_BYTES = 1 << 30  # of the caches that recordings keep


class Recordings:
    """Recorded steps by width and room; all were recorded with the features that are set.

    `why` says why steps of this model cannot be recorded, once that was tried.
    """

    def __init__(self, components: EngineComponents) -> None:
        self._components = components
        self._kept: dict[tuple[int, int], ReusedDecoding] = {}
        self._widest = 1
        self.why = ""

    def forget(self) -> None:
        """Record anew from now on."""
        self._kept, self._widest, self.why = {}, 1, ""

    def width(self, count: int) -> int:
        """How many sequences are stepped together where `count` want it: all that ever were, or a 4th, a 16th, ..."""
        width = self._widest = max(self._widest, count)
        while -(-width // _NARROWER) >= count and width > 1:
            width = -(-width // _NARROWER)
        return width

    def begin(self, layers: Sequence[Any], padding: Tensor, end: int) -> RecordedSteps | None:
        """Steps that go on from a prompt's cache of as many rows as `padding` has, up to position `end`.

        None, and `why`, for a cache that cannot be fixed.
        """
        key = len(padding), -(-end // _ROOM) * _ROOM
        try:
            kept = self._kept.pop(key, None) or self._new(layers, padding, key[1])
        except ValueError as error:
            self.why = str(error)
            return None
        self._keep(key, kept)
        kept.begin(layers, padding)
        return RecordedSteps(self, kept, padding, end)

    def _new(self, layers: Sequence[Any], padding: Tensor, room: int) -> ReusedDecoding:
        components = self._components
        assert components.attention is not None
        return ReusedDecoding(components.network, components.attention, components.recording(), layers, padding, room)

    def _keep(self, key: tuple[int, int], newest: ReusedDecoding) -> None:
        """The newest last; the oldest go where together they hold too much."""
        self._kept[key] = newest
        while len(self._kept) > 1 and sum(one.nbytes for one in self._kept.values()) > _KEPT_BYTES:
            del self._kept[next(iter(self._kept))]


class ReusedDecoding(LeanDecoding):
    """A recording that goes on from one prompt after the other."""

    def begin(self, layers: Sequence[Any], padding: Tensor) -> None:
        """From what prompts left in their cache, padded so [W]."""
        self._layers, self._held = layers, int(layers[0].get_seq_length())
        self._inputs.first.copy_(padding)
        self.start()
        self._layers = ()  # all of it was copied

    def rows(self, rows: Tensor) -> list[DynamicLayer]:
        """What the cache holds of these sequences so far."""
        return [_layer(fixed.keys[rows, :, : self._slot], fixed.values[rows, :, : self._slot]) for fixed in self._fixed]

    @property
    def nbytes(self) -> int:
        """Bytes of the cache."""
        return sum(one.nbytes for fixed in self._fixed for one in (fixed.keys, fixed.values))

    @property
    def _fixed(self) -> list[Any]:
        return list(self._cache.layers)


class RecordedSteps:
    """The steps of one batch, up to position `end` of the cache; see `Steps`."""

    def __init__(self, recordings: Recordings, decoding: ReusedDecoding, padding: Tensor, end: int) -> None:
        self._recordings, self._decoding, self._padding, self._end = recordings, decoding, padding, end
        self.width = len(padding)

    def step(self, ids: Tensor) -> Tensor:
        """See `Steps`. The first step that a recording does is recorded, too."""
        decoding = self._decoding
        if not decoding.recorded and not decoding.why:
            decoding.record(ids)
            self._recordings.why = decoding.why
        return decoding.step(ids)

    def narrowed(self, rows: Tensor) -> Steps | None:
        """See `Steps`."""
        width = self._recordings.width(len(rows))
        if width >= self.width:
            return None
        rows = filled(rows, width).to(self._padding.device)
        return self._recordings.begin(self._decoding.rows(rows), self._padding[rows], self._end)


def filled(rows: Tensor, width: int) -> Tensor:
    """These rows, and the first of them again up to `width`."""
    return torch.cat([rows, rows[:1].expand(width - len(rows))])


def _layer(keys: Tensor, values: Tensor) -> DynamicLayer:
    layer = DynamicLayer()  # type: ignore[no-untyped-call]
    layer.keys, layer.values, layer.is_initialized = keys, values, True
    return layer
