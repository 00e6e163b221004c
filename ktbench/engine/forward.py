"""Forward passes of a network and its key-value cache."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

# The layers of a cache; which class of Transformers they are is the architecture's business.
CacheState = list[Any]


class Forward:
    """Runs passes. Ids are int64 [batch, tokens]; logits are [batch, vocab], of the last position only."""

    def __init__(self, network: PreTrainedModel) -> None:
        self.network = network
        self.cache = DynamicCache(config=network.config)

    @torch.inference_mode()
    def whole(self, ids: Tensor) -> Tensor:
        """One pass over whole prompts, nothing cached."""
        return self._last(self.network(input_ids=ids, use_cache=False, logits_to_keep=1).logits)

    @torch.inference_mode()
    def onward(self, ids: Tensor) -> Tensor:
        """One pass that continues what the cache holds."""
        return self._last(self.network(input_ids=ids, past_key_values=self.cache, logits_to_keep=1).logits)

    @staticmethod
    def _last(logits: Tensor) -> Tensor:
        return logits[:, -1]

    def forget(self) -> None:
        """Empty the cache."""
        self.cache = DynamicCache(config=self.network.config)

    def remember(self) -> CacheState:
        """The cache as it is. A pass puts new tensors into its layers and leaves the old ones alone: no copy needed."""
        return [copy.copy(layer) for layer in self.cache.layers]

    def restore(self, state: CacheState) -> None:
        """Bring back what `remember` gave."""
        self.cache.layers = [copy.copy(layer) for layer in state]
