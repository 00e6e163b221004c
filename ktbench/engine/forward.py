"""Forward passes of a network and its key-value cache.

Letters: B sequences, T tokens. Shorter sequences are padded on the left.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

# The layers of a cache; which class of Transformers they are is the architecture's business.
CacheState = list[Any]


class Forward:
    """Runs passes. Ids are int64 [B, T]; logits are [B, vocab], of the last position only."""

    def __init__(self, network: PreTrainedModel) -> None:
        self.network = network
        self.cache = DynamicCache(config=network.config)
        self._padding: Tensor | None = None
        self.seen = 0

    def pad(self, padding: Tensor) -> None:
        """Sequences from now on begin after so many positions [B]."""
        self._padding = padding if padding.any() else None

    @torch.inference_mode()
    def whole(self, ids: Tensor) -> Tensor:
        """One pass over whole prompts, nothing cached."""
        arguments = self._padded(ids, 0)
        return self._last(self.network(input_ids=ids, use_cache=False, logits_to_keep=1, **arguments).logits)

    @torch.inference_mode()
    def onward(self, ids: Tensor) -> Tensor:
        """One pass that continues what the cache holds."""
        arguments = self._padded(ids, self.seen)
        self.seen += ids.shape[1]
        output = self.network(input_ids=ids, past_key_values=self.cache, logits_to_keep=1, **arguments)
        return self._last(output.logits)

    def chunked(self, ids: Tensor, chunk: int | None) -> Tensor:
        """Passes that continue what the cache holds, over `chunk` tokens at a time, or all."""
        for part in torch.split(ids, chunk or ids.shape[1], dim=1):
            logits = self.onward(part)
        return logits

    def _padded(self, ids: Tensor, seen: int) -> dict[str, Tensor]:
        """What tells a network of padding: a mask [B, positions so far] and positions [B, T]; nothing without any."""
        if self._padding is None:
            return {}
        places = torch.arange(seen + ids.shape[1], device=ids.device)
        inside = (places >= self._padding[:, None]).long()
        positions = (places[seen:] - self._padding[:, None]).clamp(min=0)
        return {"attention_mask": inside, "position_ids": positions}

    @staticmethod
    def _last(logits: Tensor) -> Tensor:
        return logits[:, -1]

    def forget(self) -> None:
        """Empty the cache."""
        self.cache, self.seen = DynamicCache(config=self.network.config), 0

    def remember(self) -> CacheState:
        """The cache as it is. A pass puts new tensors into its layers and leaves the old ones alone: no copy needed."""
        return [copy.copy(layer) for layer in self.cache.layers]

    def restore(self, state: CacheState, seen: int) -> None:
        """Bring back what `remember` gave after `seen` positions."""
        self.cache.layers, self.seen = [copy.copy(layer) for layer in state], seen
