"""Latencies of replays: percentiles against numpy, goodput, rates and queues against what was written down."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ktbench.results.serving.latency import keeps, mean_waiting, percentile, serving_of
from ktbench.spec.record import Outcome, Record
from ktbench.spec.serving.replay import Latency, Replay, ServedRequest, expanded, runs_of, spans_of
from ktbench.spec.serving.stream import SloSpec, StreamSpec
from tests.tiny import tiny_spec

NUMBERS = st.lists(st.floats(0, 1e6), min_size=1, max_size=50)


@given(values=NUMBERS, share=st.floats(0, 1))
def test_percentiles_are_those_of_numpy(values: list[float], share: float) -> None:
    assert percentile(values, share) == pytest.approx(np.percentile(values, 100 * share), rel=1e-9, abs=1e-9)


@given(values=st.lists(st.integers(0, 3)))
def test_runs_stand_for_their_values(values: list[int]) -> None:
    assert list(expanded(runs_of(values))) == values


@given(steps=st.lists(st.integers(0, 30), min_size=1).map(sorted))
def test_steps_of_tokens_are_kept_whole(steps: list[int]) -> None:
    request = ServedRequest(arrived_s=0.0, prompt=1, token_steps=spans_of(steps))
    assert list(request.steps) == steps
    assert (request.tokens, request.last_step) == (len(steps), steps[-1])


def replay() -> Replay:
    """Two requests: tokens after 1, 2, 4 s, and after 2 and 4 s from 0.5 s on."""
    return Replay(
        ends_s=(1.0, 2.0, 4.0),
        waiting=runs_of([1, 0, 0]),
        running=runs_of([1, 2, 0]),
        requests=(
            ServedRequest(arrived_s=0.0, prompt=10, token_steps=spans_of([0, 1, 2])),
            ServedRequest(arrived_s=0.5, prompt=30, token_steps=spans_of([1, 2]), cached=20),
        ),
    )


def record(**change: Any) -> Record:
    return Record(
        cell="c",
        label="+b",
        round=0,
        outcome=Outcome.OK,
        provenance="measured",
        code_id="c",
        env_id="e",
        sitting="s",
        started="",
        **({"samples_s": (0.8,), "replay": replay()} | change),
    )


def test_what_a_cell_served_is_what_was_written_down() -> None:
    spec = tiny_spec(
        phase="serve", workload={"steps": 1, "stream": StreamSpec(concurrency=1, requests=2, slo=SloSpec(ttft_s=1.2))}
    )
    found = serving_of([record()], spec)
    assert found is not None
    assert found.ttft_s.p50.mid == pytest.approx(1.25)
    assert found.ttft_s.p99.mid == pytest.approx(1.0 + 0.99 * 0.5)
    assert found.itl_s is not None
    assert found.itl_s.p50.mid == pytest.approx(2.0)
    assert found.end_to_end_s.p50.mid == pytest.approx(3.75)
    assert found.output_per_s.mid == pytest.approx(5 / 4)
    assert found.total_per_s.mid == pytest.approx(45 / 4)
    assert found.user_per_s is not None
    assert found.user_per_s.mid == pytest.approx((1 / 1.5 + 1 / 2) / 2)
    assert found.goodput is not None
    assert found.goodput.mid == pytest.approx(1 / 4)
    assert found.cached.mid == pytest.approx(20 / 40)
    assert mean_waiting(replay()) == pytest.approx(1 / 3)


def test_cells_that_serve_nothing_have_nothing_of_it() -> None:
    assert serving_of([record(replay=None)], tiny_spec()) is None


@pytest.mark.parametrize(
    ("slo", "kept"),
    [({}, True), ({"ttft_s": 0.5}, True), ({"ttft_s": 0.4}, False), ({"itl_s": 0.3}, True), ({"itl_s": 0.2}, False)],
)
def test_an_slo_is_kept_or_not(slo: dict[str, float], kept: bool) -> None:
    latency = Latency(ttft_s=0.5, gaps_s=(0.1, 0.4), end_to_end_s=1.0)
    assert keeps(latency, SloSpec(**slo)) is kept


@pytest.mark.parametrize(
    "change",
    [
        {"ends_s": (2.0, 1.0, 4.0)},
        {"waiting": runs_of([1])},
        {"ends_s": ()},
        {"requests": ()},
        {"requests": (ServedRequest(arrived_s=0.0, prompt=1, token_steps=((5, 1),)),)},
    ],
)
def test_a_replay_that_cannot_be_is_refused(change: dict[str, Any]) -> None:
    whole = replay()
    fields = {name: getattr(whole, name) for name in ("ends_s", "waiting", "running", "requests")}
    with pytest.raises(ValueError, match="Replay"):
        Replay(**(fields | change))
