"""Batches of families whose caches differ, their sequences ending one after the other."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.answers import ALL, ARMS, WORK, alone, drawn, error, opened, stepped
from tests.engine.engines import TOLERANCE, cell, changed, needs_avx512
from tests.engine.families.plain import build

pytestmark = [needs_avx512(), pytest.mark.peers]

# Caches: plain, of windows, of linear attention, a family's own, of indexed attention. The last three are not recorded.
FORMS: dict[str, dict[str, Any]] = {
    "qwen3_moe": {},
    "gpt_oss": {"sliding_window": 8},
    "qwen3_next": {"linear_num_value_heads": 8},
    "minimax": {},
    "glm_moe_dsa": {},
}
RECORDED = ("qwen3_moe", "gpt_oss")


@pytest.mark.parametrize("name", FORMS)
def test_families_with_caches_of_every_kind(name: str) -> None:
    """In one batch whose sequences end one after the other."""
    own = changed(name, **(ALL | FORMS[name]))
    network, engine = build(own), opened(own)
    prompts, given, ends = drawn((12, 5, 9)), drawn((4,) * 3, seed=4), (1, 4, 2)
    for features in ARMS.values():
        engine.use(cell(own, WORK, **features))
        for i, seen in enumerate(stepped(engine, prompts, given, ends)):
            assert error(seen, alone(network, prompts[i], given[i][: ends[i]])) < TOLERANCE
    assert bool(engine.notes()) == (name not in RECORDED)
    assert all("+v+l: steps are not recorded" in note for note in engine.notes())
