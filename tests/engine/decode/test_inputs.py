"""What a step is given: positions, limits and masks, and a cache of fixed size, against what they mean."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoConfig, DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from ktbench.engine.decode.inputs import (
    FULL,
    SLIDING,
    AttentionWindows,
    FixedLayer,
    StepInputs,
    fill,
    fixed_cache,
    write_at,
)

pytestmark = pytest.mark.usefixtures("inference")

ROOM = 12


def seen(slot: int, pad: int, window: int | None) -> list[bool]:
    """Position by position: no padding, not after the token, and in its window."""
    return [pad <= p <= slot and (window is None or slot - p < window) for p in range(ROOM)]


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=3),
    st.integers(4, ROOM - 1),
    st.none() | st.integers(1, 15),
    st.booleans(),
    st.sampled_from([None, torch.bfloat16]),
)
def test_limits_and_masks_say_the_same(
    padding: list[int], slot: int, width: int | None, mixed: bool, dtype: torch.dtype | None
) -> None:
    inputs = StepInputs(torch.tensor(padding), ROOM, AttentionWindows(width, mixed and width is not None), dtype)
    inputs.set(torch.arange(len(padding))[:, None], slot)
    inputs.follow()
    inputs.show_masks()
    assert inputs.ids[:, 0].tolist() == list(range(len(padding)))
    assert inputs.positions[:, 0].tolist() == [slot - pad for pad in padding]
    assert inputs.slot.tolist() == [slot]
    assert inputs.slots.tolist() == [slot] * len(padding)
    assert inputs.length.tolist() == [slot + 1] * len(padding)
    for kind, mask in inputs.masks.items():
        window = width if kind == SLIDING else None
        first = inputs.first_near if kind == SLIDING else inputs.first
        expected = [seen(slot, pad, window) for pad in padding]
        shown = mask[:, 0, 0] if dtype is None else mask[:, 0, 0] == 0
        assert shown.tolist() == expected
        assert first.tolist() == [row.index(True) for row in expected]
        if dtype is not None:
            assert mask[:, 0, 0][~shown].eq(torch.finfo(dtype).min).all()


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=3),
    st.integers(1, 5),
    st.integers(0, ROOM - 5),
    st.none() | st.integers(1, 15),
)
def test_each_token_of_a_chunk_sees_what_it_would_see_alone(
    padding: list[int], tokens: int, slot: int, width: int | None
) -> None:
    """One of padding sees itself, so that no row is empty."""
    inputs = StepInputs(torch.tensor(padding), ROOM, AttentionWindows(width, width is not None), None, tokens)
    inputs.set(torch.zeros(len(padding), tokens, dtype=torch.int64), slot)
    inputs.follow()
    inputs.show_masks()
    places = range(slot, slot + tokens)
    assert inputs.slot.tolist() == [*places]
    assert inputs.length.tolist() == [slot + tokens] * len(padding)
    assert inputs.positions.tolist() == [[max(place - pad, 0) for place in places] for pad in padding]
    for kind, mask in inputs.masks.items():
        window = width if kind == SLIDING else None
        expected = [[seen(place, min(pad, place), window) for place in places] for pad in padding]
        assert mask[:, 0].tolist() == expected


def test_memory_stays_where_it_is() -> None:
    inputs = StepInputs(torch.tensor([0, 2]), ROOM, AttentionWindows(4, True), torch.bfloat16)
    tensors = [inputs.ids, inputs.positions, inputs.slot, inputs.slots, inputs.length, inputs.first, inputs.first_near]
    tensors += list(inputs.masks.values())
    before = [tensor.data_ptr() for tensor in tensors]
    for slot in (3, 9):
        inputs.set(torch.zeros(2, 1, dtype=torch.int64), slot)
        inputs.follow()
        inputs.show_masks()
    assert [tensor.data_ptr() for tensor in tensors] == before


def test_padding_is_left_alone() -> None:
    padding = torch.tensor([0, 2])
    inputs = StepInputs(padding, ROOM, AttentionWindows(4, False), None)
    inputs.set(torch.zeros(2, 1, dtype=torch.int64), 10)
    inputs.follow()
    assert padding.tolist() == [0, 2]
    assert inputs.first.tolist() == [0, 2]


@pytest.mark.parametrize(
    ("family", "changes", "expected"),
    [
        ("mixtral", {"sliding_window": None}, AttentionWindows(None, False)),
        ("mixtral", {"sliding_window": 8}, AttentionWindows(8, False)),
        ("gpt_oss", {"sliding_window": 8}, AttentionWindows(8, True)),
        ("gpt_oss", {"sliding_window": 8, "layer_types": [FULL] * 36}, AttentionWindows(None, False)),
        ("qwen3_moe", {}, AttentionWindows(None, False)),
        ("deepseek_v3", {}, AttentionWindows(None, False)),
    ],
)
def test_windows_are_those_of_the_configuration(
    family: str, changes: dict[str, Any], expected: AttentionWindows
) -> None:
    assert AttentionWindows.of(AutoConfig.for_model(family, **changes)) == expected


def test_layers_of_two_kinds_get_a_mask_each() -> None:
    padding = torch.zeros(2, dtype=torch.int64)
    one, two = (
        StepInputs(padding, ROOM, windows, None).arguments
        for windows in (AttentionWindows(4, False), AttentionWindows(4, True))
    )
    assert one["attention_mask"].shape == (2, 1, 1, ROOM)
    assert set(two["attention_mask"]) == {FULL, SLIDING}
    assert set(one) == {"input_ids", "position_ids", "attention_mask"}


BATCH, HEADS, WIDTH = 2, 3, 4


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


def test_a_chunk_is_written_from_its_slot_on() -> None:
    layer, whole = prompted(3), torch.arange(3)
    cache = fixed_cache([layer], 9, whole)
    fixed: Any = cache.layers[0]
    cache.update(drawn(3, 1), drawn(3, 2), 0)
    write_at(cache, torch.arange(3, 5))
    cache.update(drawn(2, 3), drawn(2, 4), 0)
    assert torch.equal(fixed.keys[:, :, :5], torch.cat([drawn(3, 1), drawn(2, 3)], dim=2))
    assert torch.equal(fixed.values[:, :, :5], torch.cat([drawn(3, 2), drawn(2, 4)], dim=2))
    assert not fixed.keys[:, :, 5:].any()


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
