"""Runs one piece of heavy work in a process of its own, which ends with its parent."""

from __future__ import annotations

import signal
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec


class ChildFailed(Exception):
    """The child ended with another exit code than 0; the text says why."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(why)
        self.code = code


def run_apart(command: Sequence[str], asked: object, say: Callable[[str], None]) -> None:
    """Run a child that reads `asked` as JSON; `say` gets its lines of progress. Raises ChildFailed.

    The child has a session of its own, so that an interrupt from the terminal is the parent's alone to answer: it kills
    the child and goes on as an interrupt.
    """
    with tempfile.TemporaryFile("w+", errors="replace") as said:
        child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, start_new_session=True
        )
        try:
            ended = _follow(child, asked, say)
        finally:
            child.kill()
            child.wait()
        if ended:
            said.seek(0)
            raise ChildFailed(ended, _why(ended, said.read()))


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


def _why(ended: int, said: str) -> str:
    if ended < 0:
        return f"ended by {signal.Signals(-ended).name}"
    return (said.strip().splitlines() or [f"exit code {ended}"])[-1]
