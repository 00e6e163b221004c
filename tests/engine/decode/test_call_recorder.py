"""Native calls are made once, and taken down where somebody records."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from ktbench.engine.decode.program import CallRecorder, StepRecorder
from ktbench.engine.decode.timeline import Where


class Notebook:
    """Takes down calls and where they were made."""

    def __init__(self, call_recorder: CallRecorder) -> None:
        self.recorder = call_recorder
        self.notes: list[tuple[Callable[[], object], tuple[object, ...], Where]] = []

    def note(self, call: Callable[[], object], *memory: object) -> None:
        self.notes.append((call, memory, self.recorder.watch.here))


def test_a_call_is_made_once_whether_it_is_recorded_or_not() -> None:
    call_recorder, made = CallRecorder(), []
    call_recorder.do(lambda: made.append("alone"))
    book = call_recorder.sink = Notebook(call_recorder)
    call_recorder.do(lambda: made.append("recorded"), "memory")
    assert made == ["alone", "recorded"]
    [(call, memory, where)] = book.notes
    assert (memory, where) == (("memory",), Where("other"))
    call()
    assert made == ["alone", "recorded", "recorded"]


def test_waiting_is_timed_and_told_apart_from_work() -> None:
    call_recorder, waits = CallRecorder(), []
    book = call_recorder.sink = Notebook(call_recorder)
    call_recorder.do(lambda: None)
    assert call_recorder.waited_ns == 0
    call_recorder.wait(lambda: waits.append(1), 4)
    once = call_recorder.waited_ns
    assert once > 0
    call, memory, where = book.notes[-1]
    assert (memory, where) == ((), Where("wait", 4))
    assert call_recorder.watch.here == Where("other")
    call()
    assert waits == [1, 1]
    assert call_recorder.waited_ns > once


def test_a_call_that_fails_is_not_taken_down() -> None:
    call_recorder = CallRecorder()
    book = call_recorder.sink = Notebook(call_recorder)
    with pytest.raises(ZeroDivisionError):
        call_recorder.do(lambda: 1 / 0)
    assert book.notes == []


@torch.inference_mode()
def test_a_recorder_replays_what_the_tape_did_in_its_place() -> None:
    call_recorder, x, out = CallRecorder(), torch.ones(3), torch.zeros(3)
    recorder = call_recorder.sink = StepRecorder(call_recorder.watch)
    with recorder:
        doubled = x * 2
        call_recorder.do(lambda: out.numpy().__setitem__(slice(None), doubled.numpy()), doubled, out)
        result = out + 1
    x.fill_(5)
    recorder.program().replay()
    assert result.tolist() == [11, 11, 11]
