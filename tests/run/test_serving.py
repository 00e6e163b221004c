"""Streams are replayed as they were drawn, and every token is charged to the time at which it came."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ktbench.engine.protocol import Unsupported
from ktbench.engine.workload.stream import StreamRequest, draw_stream
from ktbench.run.messages import RecordIds
from ktbench.run.serving.driver import Driver, RequestFailed
from ktbench.run.serving.system import StreamSystem
from ktbench.run.session import Session
from ktbench.spec.record import Outcome, Record
from ktbench.spec.run_spec import RunSpec
from ktbench.spec.serving.replay import Replay
from ktbench.spec.serving.stream import StreamSpec
from ktbench.spec.wire import from_wire, to_wire
from tests.fake import FakeRoofs
from tests.run.serving_engine import FakeClock, FakeServing
from tests.tiny import tiny_cell, tiny_spec


def replayed(stream: tuple[StreamRequest, ...], concurrency: int = 1, **engine: Any) -> tuple[Replay, FakeServing]:
    clock = FakeClock()
    serving = FakeServing(clock, **engine)
    driver = Driver(engine=serving, stream=stream, concurrency=concurrency, clock=clock, sleep=clock.sleep)
    driver.run_until(len(stream))
    return driver.replay(), serving


def requests(*lengths: tuple[int, int], arrivals: tuple[float, ...] | None = None) -> tuple[StreamRequest, ...]:
    times = arrivals or (None,) * len(lengths)
    return tuple(
        StreamRequest(tokens=tuple(range(prompt)), answer=answer, arrival_s=at)
        for (prompt, answer), at in zip(lengths, times, strict=True)
    )


def test_a_single_user_waits_for_every_answer() -> None:
    replay, _ = replayed(requests((100, 3), (50, 2)))
    first, second = replay.latencies
    assert first.ttft_s == pytest.approx(0.2)
    assert first.gaps_s == pytest.approx((0.1, 0.1))
    assert first.end_to_end_s == pytest.approx(0.4)
    assert replay.requests[1].arrived_s == pytest.approx(0.4)
    assert second.ttft_s == pytest.approx(0.15)
    assert replay.seconds == pytest.approx(0.65)
    assert (replay.prompt_tokens, replay.output_tokens) == (150, 5)


def test_users_share_steps_and_a_prompt_delays_those_who_decode() -> None:
    replay, _ = replayed(requests((10, 4), (10, 2), (200, 2)), concurrency=2)
    one, two, three = replay.latencies
    assert one.ttft_s == two.ttft_s == pytest.approx(0.12)
    assert one.gaps_s == pytest.approx((0.1, 0.3, 0.1)), "the prompt of the third came between"
    assert three.ttft_s == pytest.approx(0.3)


def test_an_open_loop_sends_by_the_clock_and_counts_from_the_arrival() -> None:
    replay, serving = replayed(requests((10, 2), (10, 2), (10, 1), arrivals=(0.0, 0.05, 5.0)), most=1)
    first, second, third = replay.latencies
    assert first.end_to_end_s == pytest.approx(0.21)
    assert second.ttft_s == pytest.approx(0.21 - 0.05 + 0.11)
    assert replay.requests[2].arrived_s == 5.0
    assert third.ttft_s == pytest.approx(0.11)
    assert serving.clock.slept_s == pytest.approx(5.0 - 0.42)


def test_what_waits_is_counted_whether_the_engine_holds_it_or_not() -> None:
    stream = requests(*[(10, 3)] * 5, arrivals=(0.0, 0.0, 0.0, 0.0, 0.0))
    replay, _ = replayed(stream, most=1, most_waiting=2)
    waiting = [value for value, times in replay.waiting for _ in range(times)]
    running = [value for value, times in replay.running for _ in range(times)]
    assert waiting == [4, 4, 4, 3, 3, 3, 2, 2, 2, 1, 1, 1, 0, 0, 0]
    assert running == [1, 1, 0] * 5
    assert [latency.ttft_s for latency in replay.latencies] == pytest.approx([0.11 + 0.31 * i for i in range(5)])


def test_a_turn_has_all_that_was_said_before_in_its_prompt() -> None:
    asked = StreamSpec(requests=4, turns=2, concurrency=2, answer=3)
    work = tiny_spec(phase="serve", workload={"stream": asked, "steps": 1}).workload
    stream = draw_stream(work, 64)
    clock = FakeClock()
    serving = FakeServing(clock)
    driver = Driver(engine=serving, stream=stream, concurrency=2, clock=clock, sleep=clock.sleep)
    driver.run_until(4)
    for number in (2, 3):
        before = driver.answers[number - 2]
        assert driver.answers[number].prompt == (*before.prompt, *before.answer, *stream[number].tokens)
    assert [one.prompt for one in driver.replay().requests] == [8, 8, 19, 19]


def test_a_request_that_fails_ends_the_replay() -> None:
    with pytest.raises(RequestFailed, match="request 0 ended by error after 2 of 2 tokens"):
        replayed(requests((10, 2)), ends="error")


def test_samples_of_a_closed_loop_add_up_to_its_time() -> None:
    replay, _ = replayed(requests(*[(10, 4)] * 8), concurrency=2)
    samples = replay.samples_s(4, is_open=False)
    assert sum(samples) * 8 == pytest.approx(replay.seconds)
    assert samples == pytest.approx([(0.02 + 0.4) / 8] * 4)


def test_samples_of_an_open_loop_are_what_users_waited_for_a_token() -> None:
    replay, _ = replayed(requests((10, 2), (10, 2), (10, 1), arrivals=(0.0, 0.05, 5.0)), most=1)
    whole = sum(latency.end_to_end_s for latency in replay.latencies) / 5
    assert replay.samples_s(1, is_open=True) == pytest.approx((whole,))
    assert replay.samples_s(3, is_open=True)[2] == pytest.approx(0.11)


def session(clock: FakeClock, **engine: Any) -> Session:
    def opened(spec: RunSpec) -> FakeServing:
        return FakeServing(clock, features=spec.engine.features, **engine)

    system = StreamSystem(opened, clock=clock, rest=clock.sleep)
    return Session(system=system, roofs=FakeRoofs(), ids=RecordIds(code_id="c", env_id="e"), clock=clock)


STREAM = StreamSpec(requests=8, concurrency=2, answer=4)


def trial(stream: StreamSpec = STREAM, *, engine: dict[str, Any] | None = None, **features: Any) -> Record:
    cell = tiny_cell("+b", phase="serve", workload={"stream": stream, "steps": 2}, **({"batching": True} | features))
    return session(FakeClock(), **(engine or {})).trial(cell, 0)


def test_a_trial_keeps_every_request_and_its_samples_follow_from_them() -> None:
    record = trial()
    assert record.outcome is Outcome.OK
    assert record.replay is not None
    assert len(record.replay.requests) == 8
    assert record.samples_s == record.replay.samples_s(2, is_open=False)
    assert {one.feature: one.seen for one in record.evidence}["batching"] > 0  # type: ignore[operator]
    assert from_wire(to_wire(record), Record) == record


def test_answers_that_are_others_among_others_are_wrong() -> None:
    record = trial(engine={"wrong": lambda token: (token + 5) % 64})
    assert (record.outcome, record.samples_s) == (Outcome.WRONG, ())
    assert "of its answer is" in record.why


@pytest.mark.parametrize("error", [0.03, 0.3])
def test_the_same_tokens_by_other_logits_are_wrong(error: float) -> None:
    noise = np.random.default_rng(1)

    def blurred(logits: Any, several: bool) -> Any:
        return logits + several * error * np.std(logits) * noise.normal(size=logits.shape).astype(np.float32)

    record = trial(engine={"blurred": blurred})
    assert (record.outcome is Outcome.WRONG) == (error > 0.1), record.why
    assert "the logits of its answer differ" in record.why or error < 0.1


def test_requests_that_get_the_same_answers_do_not_make_the_check_vacuous() -> None:
    favourite = np.zeros(64, np.float32)
    favourite[7] = 100.0
    fixed = {"blurred": lambda logits, _: logits + favourite, "wrong": lambda _: 7}
    record = trial(engine=fixed)
    assert record.outcome is Outcome.OK, record.why


def test_the_answer_to_a_single_request_is_told_from_one_that_lacks_half_of_its_prompt() -> None:
    single = replace(STREAM, requests=1, concurrency=1)
    cell = tiny_cell(phase="serve", workload={"stream": single, "steps": 1})
    assert session(FakeClock()).trial(cell, 0).outcome is Outcome.OK
    same = {"blurred": lambda logits, _: np.ones_like(logits)}
    assert session(FakeClock(), **same).trial(cell, 0).outcome is Outcome.VACUOUS


def test_tokens_that_are_about_as_likely_are_no_error() -> None:
    close = {"wrong": lambda token: (token + 62) % 64}  # the third likeliest
    assert trial(engine=close).outcome is Outcome.WRONG
    cell = tiny_cell(
        "+b", phase="serve", workload={"stream": STREAM, "steps": 2}, measure={"tolerance": 0.03}, batching=True
    )
    found = session(FakeClock(), **close).trial(cell, 0)
    assert found.outcome is Outcome.OK, found.why


@pytest.mark.parametrize("is_greedy", [False, True])
def test_drawn_tokens_are_those_of_their_seeds(is_greedy: bool) -> None:
    """An engine that answers greedily where tokens are to be drawn would be timed without that work."""
    cell = tiny_cell(phase="serve", workload={"stream": replace(STREAM, temperature=1.0), "steps": 2})
    record = session(FakeClock(), is_greedy=is_greedy).trial(cell, 0)
    assert (record.outcome, "its seed draws" in record.why) == (
        (Outcome.WRONG, True) if is_greedy else (Outcome.OK, False)
    ), record.why


def test_a_feature_that_was_not_at_work_is_idle() -> None:
    clock = FakeClock()
    system = StreamSystem(lambda spec: FakeServing(clock), clock=clock, rest=clock.sleep)
    cell = tiny_cell("+b", phase="serve", workload={"stream": STREAM, "steps": 2}, batching=True)
    record = Session(system=system, roofs=FakeRoofs(), ids=RecordIds(code_id="c", env_id="e"), clock=clock).trial(
        cell, 0
    )
    assert (record.outcome, "batched_tokens 0" in record.why) == (Outcome.IDLE, True)


def test_times_of_roles_are_those_of_the_replay() -> None:
    clock = FakeClock()

    class Split(FakeServing):
        def counters(self) -> dict[str, int]:
            now_ns = round(1e9 * clock.now_s)
            return {**super().counters(), "host_busy_ns": now_ns // 2, "device_wait_ns": now_ns // 4}

    system = StreamSystem(lambda spec: Split(clock), clock=clock, rest=clock.sleep)
    cell = tiny_cell(phase="serve", workload={"stream": STREAM, "steps": 2})
    record = Session(system=system, roofs=FakeRoofs(), ids=RecordIds(code_id="c", env_id="e"), clock=clock).trial(
        cell, 0
    )
    assert record.replay is not None
    assert record.roles is not None
    assert record.roles.total_s == record.replay.seconds
    assert record.roles.host_busy_s == pytest.approx(record.replay.seconds / 2)
    assert record.roles.device_wait_s == pytest.approx(record.replay.seconds / 4)


def test_a_check_that_any_answer_passes_is_vacuous() -> None:
    record = trial(replace(STREAM, answer=1), engine={"wrong": lambda token: token}, measure={"tolerance": 10.0})
    assert record.outcome is Outcome.VACUOUS


def test_a_request_longer_than_the_engine_takes_is_unsupported() -> None:
    clock = FakeClock()
    system = StreamSystem(lambda spec: FakeServing(clock), clock=clock, rest=clock.sleep)
    with pytest.raises(Unsupported, match="5008 tokens with its answer, the engine takes 4096"):
        system.configure(tiny_spec(phase="serve", workload={"stream": replace(STREAM, answer=5000), "steps": 1}))


@pytest.mark.parametrize(
    ("cache", "opened", "served", "moved"),
    [
        ("cold", 1, 0, []),
        ("warm", 1, 8, []),
        ("ram", 1, 8, [False]),
        ("disk", 1, 8, [True]),
        ("restarted", 2, 0, []),
    ],
)
def test_the_prefix_cache_begins_as_the_stream_asks(
    cache: Any, opened: int, served: int, moved: list[bool], tmp_path: Any
) -> None:
    clock = FakeClock()
    engines: list[tuple[FakeServing, RunSpec]] = []

    def open_one(spec: RunSpec) -> FakeServing:
        engines.append((FakeServing(clock), spec))
        return engines[-1][0]

    system = StreamSystem(open_one, clock=clock, rest=clock.sleep)
    from ktbench.spec.engine import ServingSpec

    serving = ServingSpec(ram_bytes=1000, disk=str(tmp_path), disk_bytes=1000)
    stream = replace(STREAM, cache=cache)
    spec = tiny_spec(phase="serve", workload={"stream": stream, "steps": 1}, prefix_cache=True, serving=serving)
    system.configure(spec)
    system.start()
    assert len(engines) == opened
    assert len(engines[-1][0].prompts) == served
    assert engines[-1][0].moved == moved
    folders = {one.engine.serving.disk for _, one in engines}
    assert len(folders) == 1
    assert folders != {str(tmp_path)}, "files of others stay"
    system.step()
    assert len(engines[-1][0].prompts) == served + 8
    system.start()
    assert [one.closed for one, _ in engines[:-1]] == [True] * (len(engines) - 1)
    assert {"cold": 2, "restarted": 3}.get(cache, 1) == len(engines)


def test_a_cold_replay_is_one_of_the_engine_that_was_warmed() -> None:
    """A new engine would write to its pages and record its steps for the first time inside of the clock."""
    clock = FakeClock()
    engines: list[FakeServing] = []

    def open_one(spec: RunSpec) -> FakeServing:
        engines.append(FakeServing(clock))
        return engines[-1]

    system = StreamSystem(open_one, clock=clock, rest=clock.sleep)
    system.configure(tiny_spec(phase="serve", workload={"stream": STREAM, "steps": 1}, prefix_cache=True))
    for replay in range(3):
        system.start()
        assert [one.forgot for one in engines] == [replay]
        system.step()


def test_percentiles_are_those_of_numpy() -> None:
    from ktbench.results.serving.latency import percentile

    values = np.random.default_rng(0).gamma(2.0, size=37).tolist()
    for share in (0.5, 0.9, 0.99):
        assert percentile(values, share) == pytest.approx(np.percentile(values, 100 * share))
