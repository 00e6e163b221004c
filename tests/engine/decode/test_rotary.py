"""Cosines and sines out of a table are those that the modelling code computes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoConfig
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeRotaryEmbedding

pytest.importorskip("ktbench._kernels", reason="the kernel extension is not built", exc_type=ImportError)

from ktbench.engine.decode.operators import RotaryTable

POSITIONS = torch.tensor([[0, 3, 19], [7, 1, 2]])
HIDDEN = torch.zeros(2, 3, 64, dtype=torch.bfloat16)
_YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16}


def made(rope: dict[str, Any] | None = None) -> tuple[RotaryTable, Qwen3MoeRotaryEmbedding, Any]:
    changes = {} if rope is None else {"rope_parameters": rope}
    original = Qwen3MoeRotaryEmbedding(AutoConfig.for_model("qwen3_moe", head_dim=16, **changes))
    steps: Any = SimpleNamespace(inputs=None, tables=[])
    return RotaryTable(original, steps), original, steps


@torch.inference_mode()
@pytest.mark.parametrize("rope", [None, _YARN], ids=["plain", "yarn"])
def test_a_step_looks_up_what_the_original_computes(rope: dict[str, Any] | None) -> None:
    table, original, steps = made(rope)
    assert steps.tables == [table]
    table.make_room(20)
    steps.inputs = object()
    for seen, expected in zip(table(HIDDEN, POSITIONS), original(HIDDEN, POSITIONS), strict=True):
        assert seen.dtype == torch.bfloat16
        assert torch.equal(seen, expected)


@torch.inference_mode()
def test_outside_of_steps_the_original_runs() -> None:
    table, original, _ = made()
    table.make_room(2)
    for seen, expected in zip(table(HIDDEN, POSITIONS + 100), original(HIDDEN, POSITIONS + 100), strict=True):
        assert torch.equal(seen, expected)


@torch.inference_mode()
def test_more_room_is_made_and_less_keeps_what_there_is() -> None:
    table, original, steps = made()
    for room in (4, 20, 10):
        table.make_room(room)
    steps.inputs = object()
    assert torch.equal(table(HIDDEN, POSITIONS)[0], original(HIDDEN, POSITIONS)[0])
    with pytest.raises(IndexError):
        table(HIDDEN, POSITIONS + 1)
