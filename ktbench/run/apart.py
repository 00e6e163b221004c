"""Runs one piece of heavy work in a process of its own, which ends with its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec

from ktbench.run.oom import OomCount, killed_reason, oom_count
from ktbench.spec.errors import said
from ktbench.spec.record import Outcome


class ChildFailed(Exception):
    """The child could not be started or ended with another exit code than 0; the text says why."""

    def __init__(self, code: int, why: str, outcome: Outcome = Outcome.CRASHED) -> None:
        super().__init__(why)
        self.code, self.outcome = code, outcome


def run_apart(command: Sequence[str], asked: object, say: Callable[[str], None]) -> None:
    """Run a child that reads `asked` as JSON; `say` gets its lines of progress. Raises ChildFailed.

    The child has a session of its own, so that an interrupt from the terminal is the parent's alone to answer: it kills
    the child and goes on as an interrupt.
    """
    before = oom_count()
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        try:
            child = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output, start_new_session=True
            )
        except OSError as error:
            raise ChildFailed(1, said(error)) from None
        try:
            ended = _follow(child, asked, say)
        finally:
            _end(child)
        if ended:
            output.seek(0)
            raise _failed(ended, output.read(), before)


def _end(child: subprocess.Popen[bytes]) -> None:
    """The child leads a session of its own, so whatever it started ends with it."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _follow(child: subprocess.Popen[bytes], asked: object, say: Callable[[str], None]) -> int:
    """The child's exit code, once it is there."""
    assert child.stdin is not None
    assert child.stdout is not None
    with suppress(BrokenPipeError):  # it ended before it read, which its exit code tells
        child.stdin.write(msgspec.json.encode(asked))
        child.stdin.close()
    with child.stdout as progress:
        for line in progress:
            say(line.decode(errors="replace").rstrip())
    return child.wait()


def _failed(ended: int, output: str, before: OomCount) -> ChildFailed:
    no_memory, by = killed_reason(before, oom_count())
    if ended == -signal.SIGKILL and no_memory:
        return ChildFailed(ended, f"ended by {by}", Outcome.NO_MEMORY)
    if ended < 0:
        return ChildFailed(ended, f"ended by {signal.Signals(-ended).name}")
    last = (output.strip().splitlines() or [f"exit code {ended}"])[-1]
    return ChildFailed(ended, last, Outcome.NO_MEMORY if last.startswith("MemoryError") else Outcome.CRASHED)
