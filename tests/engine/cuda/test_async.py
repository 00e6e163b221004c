"""Engines on a device that works on its own compute what they compute on CPU cores, and wait once a step."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.engine.engines import needs_vector
from tests.engine.tiny import DISTINCT, facts

pytestmark = needs_vector()

ROOT = Path(__file__).parents[3]
Seen = dict[str, dict[str, Any]]
# Rounding of bf16 in another order; who reads memory too early or too late finds NaN or what is far off.
TOLERANCE = 0.01
# Of Python to the device between two replays of a graph.
MOST_OPERATIONS = 12
FLAGS = ("flags", "flags_deferral", "flags_graph", "flags_graph_deferral", "flags_prefill", "flags_graph_chunks")
CHUNKS = ("graph_chunks_deferral", "graph_chunks_placement", "flags_graph_chunks")
# A model of each modelling code.
NAMES = [*{facts(name)["config"]["model_type"]: name for name in reversed(DISTINCT)}.values()]
CASES = ("base", "steps", "graph", "deferral", "skipping", "placement", "moving", "streamed_deferral", "prefill")
CASES = (*CASES, "chunks", *CHUNKS[:-1], *FLAGS)
FAMILY_CASES = ("graph_deferral", "streamed", "graph_chunks")
RECORDED = ("graph", "skipping", "placement", "flags_graph", "flags_graph_deferral", *CHUNKS)


def results(*requests: str) -> list[dict[str, Any]]:
    """What cases, MODEL:CASE, give one after the other in one process of their own; they must end well."""
    command = [sys.executable, "-m", "tests.engine.cuda.async_engine", *requests]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def run(*requests: str) -> Seen:
    return {f"{one['model']}:{one['case']}": one for one in results(*requests)}


@pytest.fixture(scope="module")
def families() -> Seen:
    return run(*(f"{name}:{case}" for name in NAMES for case in FAMILY_CASES))


@pytest.fixture(scope="module")
def cases() -> Seen:
    return run(*(f"deepseek_v3:{case}" for case in CASES))


def assert_replayed(one: dict[str, Any]) -> None:
    """In one graph, and with one wait a step: its end."""
    assert one["notes"] == []
    assert set(one["waits"]) == {1}
    assert max(one["operations"]) <= MOST_OPERATIONS


@pytest.mark.parametrize("name", NAMES)
def test_families_with_graphs_and_deferral(families: Seen, name: str) -> None:
    one = families[f"{name}:graph_deferral"]
    assert one["error"] < TOLERANCE
    if name != "qwen3_next_80b_a3b":  # its linear attention keeps a state, which is not recorded
        assert_replayed(one)
        assert one["counters"]["deferred_experts"] > 0


@pytest.mark.parametrize("name", NAMES)
def test_families_with_graphs_of_chunks(families: Seen, name: str) -> None:
    """In two turns of two prompts, each of two whole chunks and what is left."""
    one = families[f"{name}:graph_chunks"]
    assert one["error"] < TOLERANCE
    (note,) = one["notes"]
    if name == "qwen3_next_80b_a3b":  # its linear attention keeps a state
        assert "not plain keys and values" in note
        return
    assert "the last 3 tokens" in note
    assert set(one["waits"]) == {1}
    assert (one["counters"]["graph_replays"], one["counters"]["eager_passes"]) == (8, 4)


@pytest.mark.parametrize("name", NAMES)
def test_families_in_layerwise_prefill(families: Seen, name: str) -> None:
    one = families[f"{name}:streamed"]
    assert one["error"] < TOLERANCE
    assert one["counters"]["streamed_bytes"] > 0
    assert families[f"{name}:graph_chunks"]["counters"]["streamed_bytes"] == 0


@pytest.mark.parametrize("case", CASES)
def test_features(cases: Seen, case: str) -> None:
    one = cases[f"deepseek_v3:{case}"]
    assert one["error"] < TOLERANCE
    if case in RECORDED:
        assert_replayed(one)


@pytest.mark.parametrize("case", CASES)
def test_only_hand_overs_by_flags_move_their_counter(cases: Seen, case: str) -> None:
    answered = cases[f"deepseek_v3:{case}"]["counters"]["flag_answers"]
    assert (answered > 0) == (case in FLAGS)


def test_streams_that_are_not_ordered_are_found() -> None:
    """The device itself is tested: without either, what is read is not there yet."""
    requests = [f"deepseek_v3:{case}:{missing}" for case in ("steps", "streamed") for missing in ("fork", "join")]
    errors = [one["error"] for one in results(*requests)]
    assert len(errors) == len(requests) and min(errors) > TOLERANCE
