"""Engines on a device that works on its own compute what they compute on CPU cores, and wait once a step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.drawing import few_of
from tests.engine.engines import needs_vector
from tests.engine.tiny import DISTINCT, facts

pytestmark = needs_vector()

Seen = Mapping[str, dict[str, Any]]
# Rounding of bf16 in another order; who reads memory too early or too late finds NaN or what is far off.
TOLERANCE = 0.01
# Of Python to the device between two replays of a graph.
MOST_OPERATIONS = 12
FLAGS = ("flags", "flags_deferral", "flags_graph", "flags_graph_deferral", "flags_prefill", "flags_graph_chunks")
CHUNKS = ("graph_chunks_deferral", "graph_chunks_placement", "flags_graph_chunks")
# A model of each modelling code.
NAMES = [*{facts(name)["config"]["model_type"]: name for name in reversed(DISTINCT)}.values()]
NAMES = few_of(NAMES, {"deepseek_v3", "qwen3_next_80b_a3b", "gpt_oss_20b"})
CASES = ("base", "steps", "graph", "deferral", "skipping", "placement", "moving", "streamed_deferral", "prefill")
CASES = (*CASES, "chunks", *CHUNKS[:-1], *FLAGS)
# Others add a feature to what these do.
WITHIN_OTHERS = {"graph", "prefill", "chunks", "flags", "flags_graph"}
FEATURES = few_of(CASES, {*CASES} - WITHIN_OTHERS)
FAMILY_CASES = ("graph_deferral", "streamed", "graph_chunks")
RECORDED = ("graph", "skipping", "placement", "flags_graph", "flags_graph_deferral", *CHUNKS)


def assert_replayed(one: dict[str, Any]) -> None:
    """In one graph, and with one wait a step: its end."""
    assert one["notes"] == []
    assert set(one["waits"]) == {1}
    assert max(one["operations"]) <= MOST_OPERATIONS


@pytest.mark.parametrize("name", NAMES)
def test_families_with_graphs_and_deferral(async_engines: Seen, name: str) -> None:
    one = async_engines[f"{name}:graph_deferral"]
    assert one["error"] < TOLERANCE
    if name != "qwen3_next_80b_a3b":  # its linear attention keeps a state, which is not recorded
        assert_replayed(one)
        assert one["counters"]["deferred_experts"] > 0


@pytest.mark.parametrize("name", NAMES)
def test_families_with_graphs_of_chunks(async_engines: Seen, name: str) -> None:
    """In two turns of two prompts, each of two whole chunks and what is left."""
    one = async_engines[f"{name}:graph_chunks"]
    assert one["error"] < TOLERANCE
    (note,) = one["notes"]
    if name == "qwen3_next_80b_a3b":  # its linear attention keeps a state
        assert "not plain keys and values" in note
        return
    assert "the last 3 tokens" in note
    assert set(one["waits"]) == {1}
    assert (one["counters"]["graph_replays"], one["counters"]["eager_passes"]) == (8, 4)


@pytest.mark.parametrize("name", NAMES)
def test_families_in_layerwise_prefill(async_engines: Seen, name: str) -> None:
    one = async_engines[f"{name}:streamed"]
    assert one["error"] < TOLERANCE
    assert one["counters"]["streamed_bytes"] > 0
    assert async_engines[f"{name}:graph_chunks"]["counters"]["streamed_bytes"] == 0


@pytest.mark.parametrize("case", FEATURES)
def test_features(async_engines: Seen, case: str) -> None:
    one = async_engines[f"deepseek_v3:{case}"]
    assert one["error"] < TOLERANCE
    if case in RECORDED:
        assert_replayed(one)


@pytest.mark.parametrize("case", FEATURES)
def test_only_hand_overs_by_flags_move_their_counter(async_engines: Seen, case: str) -> None:
    answered = async_engines[f"deepseek_v3:{case}"]["counters"]["flag_answers"]
    assert (answered > 0) == (case in FLAGS)


@pytest.mark.parametrize("missing", ["fork", "join"])
@pytest.mark.parametrize("case", ["steps", "streamed"])
def test_streams_that_are_not_ordered_are_found(async_engines: Seen, case: str, missing: str) -> None:
    """The device itself is tested: without either, what is read is not there yet."""
    assert async_engines[f"deepseek_v3:{case}:{missing}"]["error"] > TOLERANCE
