"""Native calls are made once, and taken down where somebody records."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from ktbench.engine.decode.program import Recorder, Tape
from ktbench.engine.decode.timeline import Where


class Notebook:
    """Takes down calls and where they were made."""

    def __init__(self, tape: Tape) -> None:
        self.tape = tape
        self.notes: list[tuple[Callable[[], object], tuple[object, ...], Where]] = []

    def note(self, call: Callable[[], object], *memory: object) -> None:
        self.notes.append((call, memory, self.tape.watch.here))


def test_a_call_is_made_once_whether_it_is_recorded_or_not() -> None:
    tape, made = Tape(), []
    tape.do(lambda: made.append("alone"))
    book = tape.recorder = Notebook(tape)
    tape.do(lambda: made.append("recorded"), "memory")
    assert made == ["alone", "recorded"]
    [(call, memory, where)] = book.notes
    assert (memory, where) == (("memory",), Where("other"))
    call()
    assert made == ["alone", "recorded", "recorded"]


def test_waiting_is_timed_and_told_apart_from_work() -> None:
    tape, waits = Tape(), []
    book = tape.recorder = Notebook(tape)
    tape.do(lambda: None)
    assert tape.waited_ns == 0
    tape.wait(lambda: waits.append(1), 4)
    once = tape.waited_ns
    assert once > 0
    call, memory, where = book.notes[-1]
    assert (memory, where) == ((), Where("wait", 4))
    assert tape.watch.here == Where("other")
    call()
    assert waits == [1, 1]
    assert tape.waited_ns > once


def test_a_call_that_fails_is_not_taken_down() -> None:
    tape = Tape()
    book = tape.recorder = Notebook(tape)
    with pytest.raises(ZeroDivisionError):
        tape.do(lambda: 1 / 0)
    assert book.notes == []


@torch.inference_mode()
def test_a_recorder_replays_what_the_tape_did_in_its_place() -> None:
    tape, x, out = Tape(), torch.ones(3), torch.zeros(3)
    recorder = tape.recorder = Recorder(tape.watch)
    with recorder:
        doubled = x * 2
        tape.do(lambda: out.numpy().__setitem__(slice(None), doubled.numpy()), doubled, out)
        result = out + 1
    x.fill_(5)
    recorder.program().replay()
    assert result.tolist() == [11, 11, 11]
