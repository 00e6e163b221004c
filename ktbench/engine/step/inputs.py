"""What changes from one decode step to the next, in memory that does not move.

Letters: B sequences, N positions there is room for. Position p of the cache holds the p-th token of the longest
sequence; shorter ones are padded on the left.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

# How configurations call layers that attend to a window; all others attend to everything before them.
SLIDING = "sliding_attention"
FULL = "full_attention"


@dataclass(frozen=True, slots=True)
class Windows:
    """How far layers look back: `width` positions where they look at a window, `mixed` where only some do."""

    width: int | None
    mixed: bool

    @classmethod
    def of(cls, config: Any) -> Windows:
        """As its configuration says."""
        kinds = set(getattr(config, "layer_types", None) or ())
        width = getattr(config, "sliding_window", None)
        return cls(width if SLIDING in kinds or not kinds else None, SLIDING in kinds)

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of layers that want masks of their own."""
        if self.mixed:
            return (FULL, SLIDING)
        return (FULL,) if self.width is None else (SLIDING,)


class StepInputs:
    """Inputs of a step of one token a sequence.

    `ids` and `positions` [B, 1], `slot` [1], the same as `slots` [B], and `length` [B] int64: where the token is
    written and how many positions are there with it; `first` [B]: the first position of a sequence that is no padding,
    `first_near` [B] the first in its window. `masks` [B, 1, 1, N], by kind of layer, say the same to attention that
    reads masks. All lie where `padding` does.
    """

    def __init__(self, padding: Tensor, room: int, windows: Windows, dtype: torch.dtype | None) -> None:
        batch = len(padding)
        self.ids = padding.new_zeros(batch, 1)
        self.positions = padding.new_zeros(batch, 1)
        self.slot = padding.new_zeros(1)
        self.slots = padding.new_zeros(batch)
        self.length = padding.new_zeros(batch)
        self.first = padding.clone()
        self.first_near = padding.clone()
        self._windows = windows
        self._dtype = dtype
        self.masks = {kind: padding.new_zeros(batch, 1, 1, room, dtype=dtype or torch.bool) for kind in windows.kinds}
        self._columns = torch.arange(room, device=padding.device)

    def set(self, ids: Tensor, slot: int) -> None:
        """The step that puts tokens `ids` [B, 1] at position `slot` of the cache."""
        self.ids.copy_(ids)
        self.slot.fill_(slot)
        self.slots.fill_(slot)
        self.length.fill_(slot + 1)
        self.positions[:, 0] = slot - self.first
        if self._windows.width is not None:
            torch.clamp(self.first, min=slot + 1 - self._windows.width, out=self.first_near)

    def show_masks(self) -> None:
        """Bring the masks up to date; who attends by `first` and `length` does not need them."""
        for kind, mask in self.masks.items():
            first = self.first_near if kind == SLIDING else self.first
            seen = (self._columns >= first[:, None]) & (self._columns < self.length[:, None])
            mask[:, 0, 0] = seen if self._dtype is None else self._additive(seen)

    def _additive(self, seen: Tensor) -> Tensor:
        assert self._dtype is not None
        nothing = torch.zeros(seen.shape, dtype=self._dtype, device=seen.device)
        return nothing.masked_fill_(~seen, torch.finfo(self._dtype).min)

    @property
    def arguments(self) -> dict[str, Any]:
        """How a network is called with them; models with layers of several kinds take a mask for each."""
        masks: Any = dict(self.masks) if self._windows.mixed else next(iter(self.masks.values()))
        return {"input_ids": self.ids, "position_ids": self.positions, "attention_mask": masks}
