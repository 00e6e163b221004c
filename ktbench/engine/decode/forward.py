"""Forward passes of a network and its key-value cache.

Letters: B sequences, T tokens. Shorter sequences are padded on the left.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, PreTrainedModel
from transformers.cache_utils import DynamicIndexedLayer, DynamicLayer, DynamicSlidingWindowLayer

# A cache as it was, None before anything was cached. What it holds is the architecture's business.
CacheState = Cache | None
# Layers that put new tensors in the place of old ones. Others, of linear attention say, write into theirs.
_REPLACING = (DynamicLayer, DynamicSlidingWindowLayer, DynamicIndexedLayer)
# Layers that hold every position: dropping the last ones brings back what was before them.
_CROPPABLE = (DynamicLayer, DynamicIndexedLayer)


class Forward:
    """Runs passes. Ids are int64 [B, T]; logits are [B, vocab], of the last position only."""

    def __init__(self, network: PreTrainedModel) -> None:
        self.network = network
        self.cache: Cache | None = None
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
        """One pass that continues what the cache holds; the network makes the cache that its layers need."""
        arguments = self._padded(ids, self.seen)
        self.seen += ids.shape[1]
        output = self.network(input_ids=ids, past_key_values=self.cache, use_cache=True, logits_to_keep=1, **arguments)
        self.cache = output.past_key_values
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
        self.cache, self.seen = None, 0

    def remember(self) -> CacheState:
        """The cache as it is."""
        return _kept(self.cache)

    def restore(self, state: CacheState, seen: int) -> None:
        """Bring back what `remember` gave after `seen` positions."""
        self.cache, self.seen = _kept(state), seen

    def crop(self, tokens: int) -> bool:
        """Drop the last positions from the cache; False, and nothing done, where it cannot say what was before them."""
        cache: Any = self.cache
        plain = cache is not None and not hasattr(cache, "linear_cache")
        if not plain or any(type(layer) not in _CROPPABLE for layer in cache.layers):
            return False
        cache.crop(-tokens)
        self.seen -= tokens
        return True


def _kept(cache: CacheState) -> CacheState:
    """A copy that later passes leave alone."""
    if cache is None:
        return None
    kept: Any = copy.copy(cache)
    kept.layers = [copy.copy(layer) if type(layer) in _REPLACING else copy.deepcopy(layer) for layer in cache.layers]
    if hasattr(kept, "linear_cache"):  # of MiniMax, beside its layers
        kept.linear_cache = list(kept.linear_cache)
    whole: Cache = kept
    return whole
