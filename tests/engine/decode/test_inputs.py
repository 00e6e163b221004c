"""What a step is told: positions, limits and masks, against what they mean."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoConfig

from ktbench.engine.decode.inputs import FULL, SLIDING, StepInputs, Windows

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
    inputs = StepInputs(torch.tensor(padding), ROOM, Windows(width, mixed and width is not None), dtype)
    inputs.set(torch.arange(len(padding))[:, None], slot)
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


def test_memory_stays_where_it_is() -> None:
    inputs = StepInputs(torch.tensor([0, 2]), ROOM, Windows(4, True), torch.bfloat16)
    tensors = [inputs.ids, inputs.positions, inputs.slot, inputs.slots, inputs.length, inputs.first, inputs.first_near]
    tensors += list(inputs.masks.values())
    before = [tensor.data_ptr() for tensor in tensors]
    for slot in (3, 9):
        inputs.set(torch.zeros(2, 1, dtype=torch.int64), slot)
        inputs.show_masks()
    assert [tensor.data_ptr() for tensor in tensors] == before


def test_padding_is_left_alone() -> None:
    padding = torch.tensor([0, 2])
    inputs = StepInputs(padding, ROOM, Windows(4, False), None)
    inputs.set(torch.zeros(2, 1, dtype=torch.int64), 10)
    assert padding.tolist() == [0, 2]
    assert inputs.first.tolist() == [0, 2]


@pytest.mark.parametrize(
    ("family", "changes", "expected"),
    [
        ("mixtral", {"sliding_window": None}, Windows(None, False)),
        ("mixtral", {"sliding_window": 8}, Windows(8, False)),
        ("gpt_oss", {"sliding_window": 8}, Windows(8, True)),
        ("gpt_oss", {"sliding_window": 8, "layer_types": [FULL] * 36}, Windows(None, False)),
        ("qwen3_moe", {}, Windows(None, False)),
        ("deepseek_v3", {}, Windows(None, False)),
    ],
)
def test_windows_are_those_of_the_configuration(family: str, changes: dict[str, Any], expected: Windows) -> None:
    assert Windows.of(AutoConfig.for_model(family, **changes)) == expected


def test_layers_of_two_kinds_get_a_mask_each() -> None:
    padding = torch.zeros(2, dtype=torch.int64)
    one, two = (StepInputs(padding, ROOM, windows, None).arguments for windows in (Windows(4, False), Windows(4, True)))
    assert one["attention_mask"].shape == (2, 1, 1, ROOM)
    assert set(two["attention_mask"]) == {FULL, SLIDING}
    assert set(one) == {"input_ids", "position_ids", "attention_mask"}
