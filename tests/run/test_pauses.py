"""What is timed while its process is stopped does not count, and a deadline does not pass meanwhile."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from itertools import chain, count, repeat

import pytest

from ktbench.host import probe
from ktbench.host.pauses import count_pauses, pauses
from ktbench.host.probe import Gauge, Instruments, read_rounds
from ktbench.run import worker
from ktbench.run.messages import RecordIds
from ktbench.run.session import Session
from ktbench.run.worker import _Deadline
from ktbench.spec.record import Outcome, Record
from tests.fake import FakeRoofs, FakeSystem
from tests.tiny import tiny_cell

IDS = RecordIds(code_id="code", env_id="env", worker_session="here")


@pytest.fixture(autouse=True)
def handler() -> Iterator[None]:
    before = signal.getsignal(signal.SIGCONT)
    yield
    signal.signal(signal.SIGCONT, before)


def trial(counted: Iterator[int]) -> Record:
    """A trial of a session whose process was continued so often at each look."""
    system = FakeSystem({}, step_s=0.0)
    session = Session(system=system, roofs=FakeRoofs(), ids=IDS, pauses=lambda: next(counted))  # type: ignore[arg-type]
    return session.trial(tiny_cell("+v", avx512=True), 0)


def test_every_continuation_is_counted() -> None:
    count_pauses()
    before = pauses()
    for _ in range(3):
        os.kill(os.getpid(), signal.SIGCONT)
    assert pauses() == before + 3


@pytest.mark.parametrize("stops", [0, 1, 4])
def test_a_trial_that_was_stopped_is_timed_again_and_says_so(stops: int) -> None:
    looks = chain.from_iterable((number, number + 1) for number in range(stops))
    record = trial(chain(looks, repeat(99)))
    assert record.outcome is Outcome.OK and len(record.samples_s) == 3
    assert {e.feature: e.seen for e in record.evidence}["avx512"] == 3  # of the last attempt alone
    assert [f"timed {stops + 1} times" in note for note in record.notes] == [True] * (stops > 0)


def test_a_trial_that_is_stopped_again_and_again_keeps_no_sample() -> None:
    record = trial(count())
    assert (record.outcome, record.samples_s) == (Outcome.TIMEOUT, ())
    assert "was stopped" in record.why


@pytest.mark.parametrize(("jump_s", "noted"), [(0.0, False), (0.3, False), (5.0, True)])
def test_a_jump_between_two_steps_is_noted_and_kept(jump_s: float, noted: bool) -> None:
    """Of what no signal tells: a frozen container, a machine that was paused."""
    system, jumps = FakeSystem({}, step_s=0.0), iter(())
    clock_s = 0.0

    def clock() -> float:
        nonlocal clock_s
        clock_s += 0.01 + next(jumps, 0.0)
        return clock_s

    session = Session(system=system, roofs=FakeRoofs(), ids=IDS, clock=clock)  # type: ignore[arg-type]
    session.trial(tiny_cell("+v", avx512=True), 0)
    jumps = iter([0.0, 0.0, jump_s])  # the trial begins, then the marks of its steps
    record = session.trial(tiny_cell("+v", avx512=True), 1)
    assert len(record.samples_s) == 3 and max(record.samples_s) == pytest.approx(0.01 + jump_s)
    assert any("may have been paused" in note for note in record.notes) is noted


def test_a_round_of_readings_that_was_stopped_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    looks, values = iter([0, 1, 1, 1, 1, 1]), iter([1.0, 2.0, 3.0])
    monkeypatch.setattr(probe, "pauses", lambda: next(looks))
    gauge = Gauge(key="a", title="a", unit="bytes/s", read=lambda: next(values))
    rounds = list(read_rounds(Instruments(gauges=(gauge,), missing={}), rounds=2, seconds=0.0))
    assert [one["a"].value for one in rounds] == [2.0, 3.0]


@pytest.mark.parametrize("stops", [0, 2])
def test_a_deadline_begins_anew_after_a_stop(monkeypatch: pytest.MonkeyPatch, stops: int) -> None:
    counted = [0]
    monkeypatch.setattr(worker, "pauses", lambda: counted[0])
    waits: list[float] = []

    def never(left_s: float) -> bool:
        waits.append(left_s)
        counted[0] = min(stops, len(waits))
        return False

    waiting: Callable[[], None] = lambda: _Deadline(10.0).wait(never)
    with pytest.raises(TimeoutError):
        waiting()
    assert len(waits) == 1 + stops and all(left_s > 9 for left_s in waits)
