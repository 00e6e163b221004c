"""The parent's handle on one worker process. The parent sleeps in `select` while the worker works."""

from __future__ import annotations

import os
import select
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import IO

import msgspec

from ktbench.core.outcome import Outcome
from ktbench.core.record import Cell, Record
from ktbench.core.timeline import Timeline
from ktbench.engine.protocol import Unsupported
from ktbench.launch.messages import Answer, Open, Task, Trace, Turn, send

_GRACE_S = 5.0


class WorkerDied(Exception):
    """The worker ended or was ended before it answered."""

    def __init__(self, outcome: Outcome, why: str) -> None:
        super().__init__(why)
        self.outcome, self.why = outcome, why


@dataclass(kw_only=True)
class Worker:
    """A running worker. Use `start`, then `turn` and `timeline` as often as needed, then `stop`."""

    process: subprocess.Popen[bytes]
    answers: int
    log: Path
    _pending: bytes = b""

    @classmethod
    def start(cls, opened: Open, log: Path, timeout_s: float, command: Sequence[str]) -> Worker:
        """Start a process, have it load the weights of `opened.cells`, and wait until it is ready.

        What it prints goes to the file `log`. Raises WorkerDied.
        """
        reading, writing = os.pipe()
        with log.open("ab") as output:
            process = subprocess.Popen(
                [*command, str(writing)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                pass_fds=(writing,),
                start_new_session=True,
            )
        os.close(writing)
        worker = cls(process=process, answers=reading, log=log)
        if why := worker._ask(opened, timeout_s, "loading").unsupported:
            worker.stop()
            raise WorkerDied(Outcome.UNSUPPORTED, why)
        return worker

    def turn(self, cell: Cell, round_number: int, timeout_s: float, logits: Path | None = None) -> Record:
        """The record of one turn; `logits` is the file that the logits of its group are in. Raises WorkerDied."""
        asked = Turn(cell=cell, round=round_number, logits=None if logits is None else str(logits))
        record = self._ask(asked, timeout_s, "the turn").record
        if record is None:
            raise WorkerDied(Outcome.CRASHED, "the worker answered without a record")
        return record

    def timeline(self, cell: Cell, timeout_s: float) -> Timeline:
        """What the roles do in one step of a cell. Raises Unsupported, WorkerDied."""
        answer = self._ask(Trace(cell=cell), timeout_s, "the trace")
        if answer.timeline is None:
            raise Unsupported(answer.unsupported or "the worker answered without a timeline")
        return answer.timeline

    def stop(self) -> None:
        """End the process: it leaves when its input closes, and is killed when it does not."""
        _close(self.process.stdin)
        try:
            self.process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            self._kill()
        if self.answers >= 0:
            os.close(self.answers)
            self.answers = -1

    def _ask(self, message: Open | Task, timeout_s: float, doing: str) -> Answer:
        assert self.process.stdin is not None
        try:
            send(self.process.stdin, message)
        except BrokenPipeError:
            raise self._died(doing) from None
        answer = msgspec.json.decode(self._line(timeout_s, doing), type=Answer)
        if answer.no_memory:
            self.stop()
            raise WorkerDied(Outcome.NO_MEMORY, f"{doing}: {answer.no_memory}")
        return answer

    def _line(self, timeout_s: float, doing: str) -> bytes:
        deadline = monotonic() + timeout_s
        while b"\n" not in self._pending:
            ready, _, _ = select.select([self.answers], [], [], max(0.0, deadline - monotonic()))
            if not ready:
                self._kill()
                self.stop()
                raise WorkerDied(Outcome.TIMEOUT, f"{doing} took more than {timeout_s:g} s")
            chunk = os.read(self.answers, 1 << 16)
            if not chunk:
                raise self._died(doing)
            self._pending += chunk
        line, _, self._pending = self._pending.partition(b"\n")
        return line

    def _died(self, doing: str) -> WorkerDied:
        self.stop()
        code = self.process.returncode
        if code is not None and code < 0:
            why = f"{doing}: the worker was ended by {signal.Signals(-code).name}"
        else:
            why = f"{doing}: the worker exited with {code}: {_last_line(self.log)}"
        return WorkerDied(Outcome.CRASHED, f"{why} (see {self.log.name})")

    def _kill(self) -> None:
        """The worker leads a session of its own, so whatever it started ends with it."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def _close(pipe: IO[bytes] | None) -> None:
    if pipe is not None:
        with suppress(BrokenPipeError):
            pipe.close()


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1][:200] if lines else "no output"
