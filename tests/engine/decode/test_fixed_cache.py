"""A cache of fixed size holds what the usual one would, where the usual one would."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from ktbench.engine.decode.inputs import FixedLayer, fill, fixed_cache

BATCH, HEADS, WIDTH = 2, 3, 4


@pytest.fixture(autouse=True)
def _inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


def drawn(tokens: int, seed: int = 0) -> torch.Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(BATCH, HEADS, tokens, WIDTH, generator=draw).bfloat16()


def prompted(tokens: int, window: int | None = None) -> Any:
    layer: Any = DynamicLayer() if window is None else DynamicSlidingWindowLayer(sliding_window=window)
    layer.update(drawn(tokens, 1), drawn(tokens, 2))
    return layer


@settings(deadline=None)
@given(st.integers(1, 12), st.integers(0, 5), st.none() | st.integers(2, 15))
def test_every_position_that_is_attended_to_is_held(prompt: int, steps: int, window: int | None) -> None:
    with torch.inference_mode():
        layer, slot = prompted(prompt, window), torch.zeros(1, dtype=torch.int64)
        cache = fixed_cache([layer], prompt + steps, slot)
        fill(cache, [layer])
        everything = drawn(prompt, 1)
        for step in range(steps):
            slot.fill_(prompt + step)
            keys, values = drawn(1, 10 + step), drawn(1, 20 + step)
            held, _ = cache.update(keys, values, 0)
            usual, _ = layer.update(keys, values)
            everything = torch.cat([everything, keys], dim=2)
            end = prompt + step + 1
            near = min(usual.shape[2], end if window is None else min(window, end))
            assert torch.equal(held[:, :, end - near : end], everything[:, :, end - near : end])
            assert torch.equal(usual[:, :, -near:], held[:, :, end - near : end])


def test_keys_and_values_stay_in_their_memory() -> None:
    layer, slot = prompted(5), torch.zeros(1, dtype=torch.int64)
    cache = fixed_cache([layer], 9, slot)
    fixed: Any = cache.layers[0]
    memory = fixed.keys.data_ptr(), fixed.values.data_ptr()
    fill(cache, [layer])
    for position in (5, 6):
        slot.fill_(position)
        assert cache.get_seq_length() == position
        held = cache.update(drawn(1), drawn(1), 0)
        assert (held[0].data_ptr(), held[1].data_ptr()) == memory
        assert cache.get_mask_sizes(1, 0) == (9, 0)
    assert fixed.keys.shape == (BATCH, HEADS, 9, WIDTH)


def test_filling_leaves_the_original_alone_and_starts_anew() -> None:
    layer, slot = prompted(5), torch.full((1,), 2)
    before = layer.keys.clone()
    cache = fixed_cache([layer], 6, slot)
    fill(cache, [layer])
    cache.update(drawn(1, 7), drawn(1, 8), 0)  # over a token of the prompt
    assert torch.equal(layer.keys, before)
    fill(cache, [layer])
    fixed: Any = cache.layers[0]
    assert torch.equal(fixed.keys[:, :, :5], before)


def test_a_cache_of_another_kind_is_refused_by_name() -> None:
    class LinearAttentionLayer(DynamicLayer):
        """The state of a linear attention."""

    with pytest.raises(ValueError, match="a LinearAttentionLayer is not plain keys and values"):
        fixed_cache([LinearAttentionLayer()], 4, torch.zeros(1, dtype=torch.int64))


def test_the_cache_of_a_network_is_of_plain_layers() -> None:
    cache = DynamicCache()
    cache.update(drawn(3), drawn(3), 0)
    fixed = fixed_cache(cache.layers, 4, torch.zeros(1, dtype=torch.int64))
    assert [type(layer) for layer in fixed.layers] == [FixedLayer]
