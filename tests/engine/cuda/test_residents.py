"""Packed experts and own operators of a device that works on its own: they are right, and no step waits for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from ktbench.spec.weights import Precision
from tests.drawing import few_of
from tests.engine.engines import needs_vector
from tests.engine.tiny import DISTINCT

pytestmark = needs_vector()

Seen = Mapping[str, dict[str, Any]]
PRECISIONS: tuple[Precision, ...] = ("bf16", "int8", "int4_g32", "fp8")
# The host multiplies int8 by activations rounded to int8, the device by activations in bf16.
MOST_OPERATIONS = 12
TOLERANCES = {"bf16": 0.01, "int8": 0.03, "int4_g32": 0.03, "fp8": 0.01, "unpacked": 0.03}


CASES = [f"deepseek_v3:{name}_{precision}" for name in ("few", "many", "moving") for precision in PRECISIONS]
RULES = [f"{name}:rules" for name in DISTINCT]
LATE = [f"deepseek_v3:moving_{precision}:late" for precision in PRECISIONS]
BIASED = ["gpt_oss_20b:few_int4_g32", "gpt_oss_20b:many_int4_g32", "gpt_oss_20b:moving_int4_g32"]
UNPACKED = "deepseek_v3:moving_unpacked"
# By default each way of placing experts, each format and biases once.
FEW = {f"deepseek_v3:{name}" for name in ("few_int8", "many_bf16", "moving_fp8", "moving_int8:late")}
PLACED = few_of([*CASES, *LATE, *BIASED, UNPACKED], FEW | {"gpt_oss_20b:moving_int4_g32"})
FEW_RULES = {f"{name}:rules" for name in ("deepseek_v3", "qwen3_next_80b_a3b", "minimax_m2")}


@pytest.mark.parametrize("case", PLACED)
def test_the_device_gives_what_the_host_gives(async_engines: Seen, case: str) -> None:
    one = async_engines[case]
    assert one["error"] < TOLERANCES[one["case"].partition("_")[2]]
    # Memory of this device's host is never pinned, which is said where experts are to come from it beside steps.
    assert len(one["notes"]) == (one["case"].startswith("moving") and case != UNPACKED)
    assert one["counters"]["graph_replays"] > 0
    assert one["counters"]["device_experts"] > 0
    assert (one["counters"]["experts_moved"] > 0) == one["case"].startswith("moving")


@pytest.mark.parametrize("case", PLACED)
def test_steps_wait_for_their_end_alone(async_engines: Seen, case: str) -> None:
    """Experts move in the first of these steps; what has to be dispatched for it is a handful for each."""
    one = async_engines[case]
    assert set(one["waits"]) == {1}
    most = MOST_OPERATIONS + 20 * one["counters"]["experts_moved"]
    assert max(one["operations"]) <= most


@pytest.mark.parametrize("case", few_of(RULES, FEW_RULES))
def test_norms_and_latent_attention_of_the_device(async_engines: Seen, case: str) -> None:
    one = async_engines[case]
    assert one["error"] < TOLERANCES["bf16"]
    if not case.startswith("qwen3_next"):  # its linear attention keeps a state, which is not recorded
        assert (one["notes"], set(one["waits"])) == ([], {1})
        assert max(one["operations"]) <= MOST_OPERATIONS


def test_an_expert_that_is_asked_for_before_it_has_arrived_is_found(async_engines: Seen) -> None:
    """The device itself is tested: what is read is the expert that was there before."""
    early, late = (async_engines[f"deepseek_v3:moving_int8:{when}"] for when in ("done", "late"))
    assert early["error"] > 2 * late["error"]
