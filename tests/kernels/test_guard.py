"""Guarded pages: a write ends the process and says why; other faults, and signals that are sent, end it as ever."""

from __future__ import annotations

import ctypes
import faulthandler
import mmap
import os
import signal
from collections.abc import Callable

import pytest

from ktbench import _kernels

PAGE = mmap.PAGESIZE


def address_of(memory: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def end_of(act: Callable[[int, int], object]) -> tuple[int, str]:
    """Exit code and standard error of a process that does `act` on the addresses of a guarded page and a free one."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        faulthandler.disable()  # of pytest's, which would report what is wanted here
        os.dup2(writing, 2)
        guarded, free = mmap.mmap(-1, PAGE), mmap.mmap(-1, PAGE)
        _kernels.guard_pages(address_of(guarded), PAGE)
        act(address_of(guarded), address_of(free))
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, errors="replace") as said:
        text = said.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), text


def test_a_write_ends_the_process_and_says_why():
    code, said = end_of(lambda guarded, _: ctypes.memset(guarded + PAGE // 2, 1, 1))
    assert code == 1
    assert "weights that other rows use" in said


@pytest.mark.parametrize("replace", [faulthandler.enable, faulthandler.disable])
def test_a_handler_that_others_replaced_is_set_again(replace):
    def act(guarded: int, free: int) -> None:
        replace()
        _kernels.guard_pages(free, PAGE)
        ctypes.memset(guarded, 1, 1)

    # As in a process whose Python reports faults from the start.
    def enabled_before(guarded: int, free: int) -> None:
        faulthandler.enable()
        act(guarded, free)

    for way in (act, enabled_before):
        code, said = end_of(way)
        assert code == 1
        assert "weights that other rows use" in said


def test_reading_guarded_pages_and_writing_others_is_free():
    def both(guarded: int, free: int) -> None:
        ctypes.string_at(guarded, PAGE)
        ctypes.memset(free, 1, PAGE)

    assert end_of(both)[0] == 0


def between_handlers(_: int, free: int) -> None:
    faulthandler.enable()
    _kernels.guard_pages(free, PAGE)
    ctypes.memset(PAGE, 1, 1)


@pytest.mark.parametrize(
    "act",
    [lambda *_: ctypes.memset(PAGE, 1, 1), lambda *_: os.kill(os.getpid(), signal.SIGSEGV), between_handlers],
    ids=["another fault", "sent", "another fault, Python's handler in between"],
)
def test_other_faults_and_signals_end_the_process_by_the_signal(act):
    code, said = end_of(act)
    assert code == -signal.SIGSEGV
    assert "weights that other rows use" not in said


@pytest.mark.parametrize(("offset", "nbytes"), [(1, PAGE), (0, PAGE - 1), (0, 0)])
def test_memory_that_is_not_whole_pages_is_refused(offset, nbytes):
    memory = mmap.mmap(-1, 2 * PAGE)
    with pytest.raises(ValueError, match="whole pages"):
        _kernels.guard_pages(address_of(memory) + offset, nbytes)
