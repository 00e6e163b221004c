"""Latencies of replays: percentiles against numpy, goodput, rates and queues against what was written down."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ktbench.results.quantities.table import QUANTITIES
from ktbench.results.quantities.trials import trials_of
from ktbench.results.serving.latency import keeps, mean_waiting, percentile
from ktbench.spec.record import Outcome, Record
from ktbench.spec.run_spec import RunSpec
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
        worker_session="s",
        started="",
        **({"samples_s": (0.8,), "replay": replay()} | change),
    )


def of_trial(record: Record, spec: RunSpec) -> dict[str, Any]:
    """What a trial alone has of each quantity."""
    (trial,) = trials_of([record], spec)
    found = {one.name: one.trial(trial) for one in QUANTITIES if one.trial is not None}
    return {name: value for name, value in found.items() if value is not None}


def test_what_a_cell_served_is_what_was_written_down() -> None:
    spec = tiny_spec(
        phase="serve", workload={"steps": 1, "stream": StreamSpec(concurrency=1, requests=2, slo=SloSpec(ttft_s=1.2))}
    )
    expected = {
        "ttft_p50_s": 1.25,
        "ttft_p99_s": 1.0 + 0.99 * 0.5,
        "itl_p50_s": 2.0,
        "end_to_end_p50_s": 3.75,
        "output_per_s": 5 / 4,
        "total_per_s": 45 / 4,
        "user_per_s": (1 / 1.5 + 1 / 2) / 2,
        "goodput": 1 / 4,
        "kept": 1 / 2,
        "cached": 20 / 40,
        "waiting": 1 / 3,
        "most_waiting": 1,
    }
    found = of_trial(record(), spec)
    assert {name: found[name] for name in expected} == pytest.approx(expected)
    assert mean_waiting(replay()) == pytest.approx(1 / 3)


def test_answers_of_one_token_have_no_time_between_tokens() -> None:
    spec = tiny_spec(phase="serve", workload={"steps": 1, "stream": StreamSpec(concurrency=1, requests=1)})
    alone = replace(replay(), requests=(ServedRequest(arrived_s=0.0, prompt=10, token_steps=spans_of([1])),))
    both = trials_of([record(), replace(record(replay=alone), round=1)], spec)
    assert not any(trial.has_gaps for trial in both)  # a median over other rounds than those of the time would mislead
    assert not {"itl_p50_s", "user_per_s"} & of_trial(record(replay=alone), spec).keys()


def test_cells_that_serve_nothing_have_nothing_of_it() -> None:
    assert of_trial(record(replay=None), tiny_spec()).keys() == {"step_s"}


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
