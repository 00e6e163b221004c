"""Packed experts and own operators of a device that works on its own: they are right, and no step waits for them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ktbench.spec.weights import Precision
from tests.engine.engines import needs_vector
from tests.engine.tiny import DISTINCT

pytestmark = needs_vector()

ROOT = Path(__file__).parents[3]
PRECISIONS: tuple[Precision, ...] = ("bf16", "int8", "int4_g32", "fp8")
# The host multiplies int8 by activations rounded to int8, the device by activations in bf16.
MOST_OPERATIONS = 12
TOLERANCES = {"bf16": 0.01, "int8": 0.03, "int4_g32": 0.03, "fp8": 0.01, "unpacked": 0.03}


def run(*requests: str) -> dict[str, dict[str, Any]]:
    """What cases of `async_residents` give, by the request."""
    command = [sys.executable, "-m", "tests.engine.cuda.async_residents", *requests]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return dict(zip(requests, map(json.loads, done.stdout.splitlines()), strict=True))


CASES = [f"deepseek_v3:{name}_{precision}" for name in ("few", "many", "moving") for precision in PRECISIONS]
RULES = [f"{name}:rules" for name in DISTINCT]
LATE = [f"deepseek_v3:moving_{precision}:late" for precision in PRECISIONS]
BIASED = ["gpt_oss_20b:few_int4_g32", "gpt_oss_20b:many_int4_g32", "gpt_oss_20b:moving_int4_g32"]
UNPACKED = "deepseek_v3:moving_unpacked"


@pytest.fixture(scope="module")
def seen() -> dict[str, dict[str, Any]]:
    return run(*CASES, *LATE, *BIASED, UNPACKED)


@pytest.mark.parametrize("case", [*CASES, *LATE, *BIASED, UNPACKED])
def test_the_device_gives_what_the_host_gives(seen: dict[str, dict[str, Any]], case: str) -> None:
    one = seen[case]
    assert one["error"] < TOLERANCES[one["case"].partition("_")[2]]
    # Memory of this device's host is never pinned, which is said where experts are to come from it beside steps.
    assert len(one["notes"]) == (one["case"].startswith("moving") and case != UNPACKED)
    assert one["counters"]["graph_replays"] > 0
    assert one["counters"]["device_experts"] > 0
    assert (one["counters"]["experts_moved"] > 0) == one["case"].startswith("moving")


@pytest.mark.parametrize("case", [*CASES, *LATE, *BIASED, UNPACKED])
def test_steps_wait_for_their_end_alone(seen: dict[str, dict[str, Any]], case: str) -> None:
    """Experts move in the first of these steps; what has to be dispatched for it is a handful for each."""
    one = seen[case]
    assert set(one["waits"]) == {1}
    most = MOST_OPERATIONS + 20 * one["counters"]["experts_moved"]
    assert max(one["operations"]) <= most


@pytest.fixture(scope="module")
def with_rules() -> dict[str, dict[str, Any]]:
    return run(*RULES)


@pytest.mark.parametrize("case", RULES)
def test_norms_and_latent_attention_of_the_device(with_rules: dict[str, dict[str, Any]], case: str) -> None:
    one = with_rules[case]
    assert one["error"] < TOLERANCES["bf16"]
    if not case.startswith("qwen3_next"):  # its linear attention keeps a state, which is not recorded
        assert (one["notes"], set(one["waits"])) == ([], {1})
        assert max(one["operations"]) <= MOST_OPERATIONS


def test_an_expert_that_is_asked_for_before_it_has_arrived_is_found() -> None:
    """The device itself is tested: what is read is the expert that was there before."""
    early, late = run("deepseek_v3:moving_int8:done", "deepseek_v3:moving_int8:late").values()
    assert early["error"] > 2 * late["error"]
