"""Standard streams and ending signals of a command, whatever it was started with."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from contextvars import ContextVar
from types import FrameType
from typing import Any, TextIO, cast

from ktbench.spec.errors import printable


class Ended(KeyboardInterrupt):
    """A signal asks the command to end. It is handled as an interrupt: what was measured is kept."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


# Of a terminal that is closed, and of batch systems.
_ENDING = (signal.SIGHUP, signal.SIGTERM)
_AGAIN_S = 0.01  # in which a callback is over


@contextmanager
def ending_signals() -> Iterator[None]:
    """Inside, these signals raise Ended, unless they were ignored (nohup) or have a handler."""
    is_main = threading.current_thread() is threading.main_thread()
    ours = [one for one in _ENDING if is_main and signal.getsignal(one) is signal.SIG_DFL]
    for one in ours:
        signal.signal(one, _end)
    try:
        with _sent_again():
            yield
    finally:
        for one in ours:
            signal.signal(one, signal.SIG_DFL)


@contextmanager
def _sent_again() -> Iterator[None]:
    """Inside, an interrupt that comes in a callback or a finalizer, where Python ignores exceptions, is sent again.

    It would be lost otherwise, and a traceback would say so.
    """
    told, main, sent = sys.unraisablehook, threading.main_thread().ident or 0, list[threading.Timer]()

    def tell(ignored: sys.UnraisableHookArgs, /) -> None:
        if not isinstance(ignored.exc_value, KeyboardInterrupt):
            told(ignored)
            return
        number = exit_code_of(ignored.exc_value) - 128
        sent.append(threading.Timer(_AGAIN_S, signal.pthread_kill, (main, number)))
        sent[-1].daemon = True
        sent[-1].start()

    sys.unraisablehook = tell
    try:
        yield
    finally:
        sys.unraisablehook = told
        for timer in sent:
            timer.cancel()


def _end(number: int, frame: FrameType | None) -> None:
    raise Ended(number)


def exit_code_of(error: KeyboardInterrupt) -> int:
    """The exit code that shells report for the signal."""
    return 128 + (error.number if isinstance(error, Ended) else signal.SIGINT)


_AS_JSON = ContextVar("as_json", default=False)
_IS_VERBOSE = ContextVar("is_verbose", default=False)


@contextmanager
def printing(*, as_json: bool = False, verbose: bool = False) -> Iterator[None]:
    """Inside, verbs that can print JSON lines, or what stands behind each row, do so if that is wanted."""
    before = _AS_JSON.set(as_json), _IS_VERBOSE.set(verbose)
    try:
        yield
    finally:
        _AS_JSON.reset(before[0])
        _IS_VERBOSE.reset(before[1])


def is_json() -> bool:
    """Whether JSON lines are wanted on stdout."""
    return _AS_JSON.get()


def is_verbose() -> bool:
    """Whether rows are to be printed with what shows that features ran and outputs are right."""
    return _IS_VERBOSE.get()


class PlainText:
    """A stream without control characters. Letters that its encoding lacks are written as escapes."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._encoding = stream, stream.encoding or "utf-8"

    def write(self, text: str) -> int:
        """As that of a text stream."""
        self._stream.write(printable(text).encode(self._encoding, "backslashreplace").decode(self._encoding))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def plain_output() -> Iterator[None]:
    """Inside, standard output is plain text, and no standard stream is closed."""
    _open_closed()
    with redirect_stdout(cast("TextIO", PlainText(sys.stdout))):
        yield


def _open_closed() -> None:
    """Streams that were closed lead to /dev/null; a file that is opened would otherwise take the number of one."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, number)
            if null != number:
                os.close(null)
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))
