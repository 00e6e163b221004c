"""Inputs and key-value cache of passes, in memory that does not move between them.

Letters: B sequences, T tokens of each in a pass (one in a decode step), N positions there is room for. Position p of
the cache holds the p-th token of the longest sequence; shorter ones are padded on the left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin
from transformers.modeling_outputs import MoeCausalLMOutputWithPast

from ktbench.engine.routing import PassRouting

# What networks and their attention call a cache, as an argument and as a result: Transformers 5.24 renamed it.
CACHE = "cache" if "cache" in {field.name for field in fields(MoeCausalLMOutputWithPast)} else "past_key_values"
# What layer of a network's usual cache can be held as plain keys and values.
_PLAIN = ("DynamicLayer", "DynamicSlidingWindowLayer")

# The routing of each pass of a step (a step of several chunks has several); None leaves it to the routers.
StepRouting = Sequence[PassRouting] | None


@dataclass(frozen=True, kw_only=True, slots=True)
class DecodeState:
    """Where sequences stand: their cache after `seen` positions, of which the first `padding` [B] are padding."""

    cache: Cache | None
    seen: int
    padding: Tensor


class FixedLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]
    """Keys and values [B, heads, N, width] of one layer; a pass writes them at `slot` [T].

    Of latent attention they are the latents and the rotated keys that all heads share: `beside` [B, 1, N, both widths]
    has them side by side, as one key.
    """

    def __init__(self, keys: Tensor, values: Tensor, slot: Tensor, beside: Tensor | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.keys, self.values, self.slot, self.beside = keys, values, slot, beside
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing to do: the memory is there."""

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Writes T positions [B, heads, T, width], gives all N."""
        assert self.keys is not None and self.values is not None
        self.keys.index_copy_(2, self.slot, key_states)
        self.values.index_copy_(2, self.slot, value_states)
        return self.keys, self.values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """All positions, from the first on."""
        return self.get_max_length(), 0

    def get_seq_length(self) -> int:
        """Positions written, known only where the slot is read: a recorded pass must not do that."""
        return int(self.slot[0].item())

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
    if type(layer).__name__ not in _PLAIN or layer.keys is None or layer.values is None:
        raise ValueError(f"a {type(layer).__name__} is not plain keys and values")
    widths = [layer.keys.shape[3], layer.values.shape[3]]
    if layer.keys.shape[1] == 1:
        beside = layer.keys.new_zeros(len(layer.keys), 1, room, sum(widths))
        return FixedLayer(beside[..., : widths[0]], beside[..., widths[0] :], slot, beside)
    keys, values = (held.new_zeros(*held.shape[:2], room, held.shape[3]) for held in (layer.keys, layer.values))
    return FixedLayer(keys, values, slot)


def write_at(cache: Cache, slot: Tensor) -> None:
    """From now on a pass writes at `slot` [T]."""
    plain: list[Any] = list(cache.layers)
    for fixed in plain:
        fixed.slot = slot


def fill(cache: Cache, layers: Sequence[Any]) -> None:
    """Write what a prompt left in its cache to the first positions; of a sliding window only the last ones are left."""
    plain: list[Any] = list(cache.layers)
    for fixed, layer in zip(plain, layers, strict=True):
        for to, held in ((fixed.keys, layer.keys), (fixed.values, layer.values)):
            end = getattr(layer, "cumulative_length", held.shape[2])
            to[:, :, end - held.shape[2] : end].copy_(held)


# How configurations call layers that attend to a window; all others attend to everything before them.
SLIDING = "sliding_attention"
FULL = "full_attention"


@dataclass(frozen=True, slots=True)
class AttentionWindows:
    """How far layers look back: `width` positions where they look at a window, `mixed` where only some do."""

    width: int | None
    mixed: bool

    @classmethod
    def of(cls, config: Any) -> AttentionWindows:
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
    """Inputs of a pass of T = `tokens` of every sequence.

    `ids` and `positions` [B, T], `slot` [T]: where the tokens are written; `slots` and `length` [B] int64: where the
    last one is, and how many positions are there with it; `first` [B]: the first position of a sequence that is no
    padding, `first_near` [B] the first in the window of the last token. `masks` [B, 1, T, N], by kind of layer, say the
    same to attention that reads masks. All lie where `padding` does.
    """

    def __init__(
        self, padding: Tensor, room: int, windows: AttentionWindows, dtype: torch.dtype | None, tokens: int = 1
    ) -> None:
        batch = len(padding)
        self.ids = padding.new_zeros(batch, tokens)
        self.positions = padding.new_zeros(batch, tokens)
        self.slot = padding.new_zeros(tokens)
        self.slots = padding.new_zeros(batch)
        self.length = padding.new_zeros(batch)
        self.first = padding.clone()
        self.first_near = padding.clone()
        self._begin = padding.new_zeros(batch, tokens)
        self._windows = windows
        self._dtype = dtype
        shape = batch, 1, tokens, room
        self.masks = {kind: padding.new_zeros(shape, dtype=dtype or torch.bool) for kind in windows.kinds}
        self._tokens = torch.arange(tokens, device=padding.device)
        self._columns = torch.arange(room, device=padding.device)

    @classmethod
    def of(cls, config: Any, padding: Tensor, room: int, tokens: int = 1) -> StepInputs:
        """Of a network with this configuration."""
        dtype = torch.bfloat16 if config._attn_implementation == "eager" else None
        return cls(padding, room, AttentionWindows.of(config), dtype, tokens)

    @property
    def tokens(self) -> int:
        """T."""
        return len(self.slot)

    def set(self, ids: Tensor, slot: int) -> None:
        """The pass that puts tokens `ids` [B, T] into the cache from position `slot` on; the rest must `follow`."""
        self.ids.copy_(ids)
        torch.add(self._tokens, slot, out=self.slot)

    def follow(self) -> None:
        """Derive everything but masks from the slot, with operations that a recording can hold.

        A token of padding stands for itself: it sees no other, and none sees it.
        """
        self.slots.copy_(self.slot[-1:].expand_as(self.slots))
        torch.add(self.slots, 1, out=self.length)
        torch.minimum(self.first[:, None], self.slot, out=self._begin)
        torch.sub(self.slot, self._begin, out=self.positions)
        if self._windows.width is not None:
            torch.maximum(self.first, self.length - self._windows.width, out=self.first_near)

    def show_masks(self) -> None:
        """Bring the masks up to date; who attends by `first` and `length` does not need them."""
        for kind, mask in self.masks.items():
            first = self._begin
            if kind == SLIDING and self._windows.width is not None:
                first = torch.maximum(first, self.slot + 1 - self._windows.width)
            seen = (self._columns >= first[..., None]) & (self._columns <= self.slot[:, None])
            mask[:, 0] = seen if self._dtype is None else self._additive(seen)

    def _additive(self, seen: Tensor) -> Tensor:
        assert self._dtype is not None
        nothing = torch.zeros(seen.shape, dtype=self._dtype, device=seen.device)
        return nothing.masked_fill_(~seen, torch.finfo(self._dtype).min)

    @property
    def arguments(self) -> dict[str, Any]:
        """How a network is called with them; models with layers of several kinds take a mask for each."""
        masks: Any = dict(self.masks) if self._windows.mixed else next(iter(self.masks.values()))
        return {"input_ids": self.ids, "position_ids": self.positions, "attention_mask": masks}
