"""The sequences of a batch under generation: the rows that still need tokens, and runners that serve batch after batch.

Letters: W sequences that are stepped together, R of them that still need tokens, V tokens of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ktbench.engine.components import EngineComponents
from ktbench.engine.decode.inputs import DecodeState
from ktbench.engine.decode.step import DecodeRunner, Forward, PassRunner, ReplayDecoder

# A batch is compacted once so many of its sequences are left: above, copying its cache costs more than it saves.
_COMPACT = 3 / 4
# Recordings have room for whole multiples of so many positions: some attention computes all of them, used or not.
_ROOM = 32
_NARROWER = 4  # a width is recorded for a quarter of the sequences, one for a quarter of those, ...
_KEPT_BYTES = 1 << 30  # of the caches that recordings keep


class RunnerPool:
    """Runners for batches: recordings by width and room, filled anew for each batch, or passes of `forward`.

    All recordings were made with the features that are set.
    """

    def __init__(self, components: EngineComponents, forward: Forward) -> None:
        self._components, self._forward = components, forward
        self._passes = PassRunner(forward, components.state)
        self._decoders: dict[tuple[int, int], ReplayDecoder] = {}  # last used last
        self._widest = 1
        self._why = ""

    @property
    def why(self) -> str:
        """Why steps of this model cannot be recorded, once that was tried; else empty."""
        return self._why or next((decoder.why for decoder in self._decoders.values() if decoder.why), "")

    def reset(self) -> None:
        """Record anew from now on."""
        self._decoders, self._widest, self._why = {}, 1, ""

    def begin(self, room: int, *, recorded: bool) -> DecodeRunner:
        """A runner for the sequences in the cache of `forward` and up to `room` more tokens of each.

        It is recorded where `recorded`, unless the model cannot be: a recording may be wider than the batch, whose rows
        come first.
        """
        forward = self._forward
        if not recorded or self.why:
            return self._passes
        if not forward.can_select:
            self._why = f"a {type(forward.cache).__name__} is not plain keys and values"
            return self._passes
        count = len(forward.padding)
        forward.select(_pad_rows(torch.arange(count), self._width(count)))
        state = DecodeState(cache=forward.cache, seen=forward.seen, padding=forward.padding)
        try:
            return self._decoder(state, forward.seen + room)
        except ValueError as error:
            self._why = str(error)
            return self._passes

    def compacted(self, runner: DecodeRunner, rows: Tensor) -> DecodeRunner | None:
        """A runner for these rows [R], which come first; None where the batch is better continued as it is."""
        if isinstance(runner, ReplayDecoder):
            width = self._width(len(rows))
            if width >= runner.width:
                return None
            return self._decoder(runner.select(_pad_rows(rows, width)), runner.room)
        if len(rows) > _COMPACT * runner.width or not self._forward.can_select:
            return None
        self._forward.select(rows)
        return runner

    def _width(self, count: int) -> int:
        """How many sequences are stepped together where `count` need it: all that ever were, or a 4th, a 16th, ..."""
        width = self._widest = max(self._widest, count)
        while -(-width // _NARROWER) >= count and width > 1:
            width = -(-width // _NARROWER)
        return width

    def _decoder(self, state: DecodeState, end: int) -> ReplayDecoder:
        """One with room up to position `end`. Raises ValueError for a cache that cannot be fixed."""
        key = len(state.padding), -(-end // _ROOM) * _ROOM
        kept = self._decoders.pop(key, None)
        if kept is None:
            kept = self._components.decoder(state, key[1])
        else:
            kept.begin(state)
        self._decoders[key] = kept
        while len(self._decoders) > 1 and sum(decoder.nbytes for decoder in self._decoders.values()) > _KEPT_BYTES:
            del self._decoders[next(iter(self._decoders))]
        return kept


class GenerationBatch:
    """The sequences of a batch that still need tokens: the first `count` of `runner`'s."""

    def __init__(self, pool: RunnerPool, runner: DecodeRunner, count: int) -> None:
        self._pool, self._runner = pool, runner
        self._rows = torch.arange(count)

    def step(self, ids: Tensor) -> Tensor:
        """Logits [R, V] after one token `ids` [R] of each."""
        whole = ids.new_zeros(self._runner.width, 1)
        whole[self._rows, 0] = ids
        return self._runner.step(whole, None)[self._rows]

    def keep(self, kept: Sequence[int]) -> None:
        """Continue with the sequences at these indices."""
        rows = self._rows[list(kept)]
        compacted = self._pool.compacted(self._runner, rows)
        self._rows = rows if compacted is None else torch.arange(len(rows))
        self._runner = compacted or self._runner


def _pad_rows(rows: Tensor, width: int) -> Tensor:
    """These rows, and the first of them again up to `width`."""
    return torch.cat([rows, rows[:1].expand(width - len(rows))])
