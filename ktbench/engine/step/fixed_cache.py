"""A key-value cache in memory that does not move, for steps of one token a sequence.

Letters: B sequences, N positions there is room for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

# What layer of a network's usual cache can be held as plain keys and values.
_PLAIN = ("DynamicLayer", "DynamicSlidingWindowLayer")


class FixedLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]
    """Keys and values [B, heads, N, width] of one layer; a step writes them at `slot` [1]."""

    def __init__(self, keys: Tensor, values: Tensor, slot: Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.keys, self.values, self.slot = keys, values, slot
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing to do: the memory is there."""

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Writes one position [B, heads, 1, width], gives all N."""
        assert self.keys is not None and self.values is not None
        self.keys.index_copy_(2, self.slot, key_states)
        self.values.index_copy_(2, self.slot, value_states)
        return self.keys, self.values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """All positions, from the first on."""
        return self.get_max_length(), 0

    def get_seq_length(self) -> int:
        """Positions written, known only where the slot is read: a recorded step must not ask."""
        return int(self.slot.item())

    def get_max_length(self) -> int:
        """N."""
        assert self.keys is not None
        return self.keys.shape[2]


def fixed_cache(layers: Sequence[CacheLayerMixin], room: int, slot: Tensor) -> Cache:
    """A copy of a cache with room for so many positions.

    Raises ValueError for a layer that is more than plain keys and values, such as the state of a linear attention.
    """
    return Cache(layers=[_fixed(layer, room, slot) for layer in layers])


def _fixed(layer: CacheLayerMixin, room: int, slot: Tensor) -> FixedLayer:
    if type(layer).__name__ not in _PLAIN or layer.keys is None:
        raise ValueError(f"a {type(layer).__name__} is not plain keys and values")
    return FixedLayer(_roomy(layer.keys, room), _roomy(layer.values, room), slot)


def _roomy(held: Tensor | None, room: int) -> Tensor:
    assert held is not None
    batch, heads, _, width = held.shape
    return torch.zeros(batch, heads, room, width, dtype=held.dtype, device=held.device)


def fill(cache: Cache, layers: Sequence[Any]) -> None:
    """Write what a prompt left in its cache to the first positions; of a sliding window only the last ones are left."""
    plain: list[Any] = list(cache.layers)
    for fixed, layer in zip(plain, layers, strict=True):
        for to, held in ((fixed.keys, layer.keys), (fixed.values, layer.values)):
            end = getattr(layer, "cumulative_length", held.shape[2])
            to[:, :, end - held.shape[2] : end].copy_(held)
