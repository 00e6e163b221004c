"""The parent's handle on one worker process. The parent sleeps in `select` while the worker works."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import IO

import msgspec

from ktbench.engine.protocol import Unsupported
from ktbench.host.software import find_peer
from ktbench.run.child import OomCount, killed_reason, oom_count
from ktbench.run.messages import Answer, Open, Task, Trace, Turn, encoded
from ktbench.spec.errors import error_text
from ktbench.spec.peers import BY_NAME
from ktbench.spec.record import Cell, Outcome, Record
from ktbench.spec.run_spec import RunSpec
from ktbench.spec.timeline import Timeline

_MODULE = "ktbench.run.serve"
SERVE: tuple[str, ...] = (sys.executable, "-m", _MODULE)


def serve_command(spec: RunSpec) -> Sequence[str]:
    """The worker of a spec's system. A peer's environment comes first on its path, then ours with all that we need."""
    if spec.system == "ktbench":
        return SERVE
    found = find_peer(BY_NAME[spec.system], spec.peer)
    if found is None or found.python == sys.executable:
        return SERVE
    ours = sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})
    code = (
        f"import site, sys; [site.addsitedir(path) for path in {ours!r}]; from {_MODULE} import main; sys.exit(main())"
    )
    return (found.python, "-c", code)


_GRACE_S = 5.0
# After SIGTERM, before SIGKILL.
_LAST_WORDS_S = 2.0
_OUT_OF_MEMORY = ("MemoryError", "bad_alloc", "annot allocate memory", "out of memory")


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
    oom_before: OomCount
    _pending: bytes = b""

    @classmethod
    def start(cls, opened: Open, log: Path, timeout_s: float, command: Sequence[str]) -> Worker:
        """Start a process, have it load the weights of `opened.cells`, and wait until it is ready.

        What it prints goes to the file `log`. Raises WorkerDied.
        """
        reading, writing = os.pipe()
        try:
            process = _started([*command, str(writing)], log, writing)
        except OSError as error:
            os.close(reading)
            raise WorkerDied(Outcome.CRASHED, f"the worker could not be started: {error_text(error)}") from None
        finally:
            os.close(writing)
        worker = cls(process=process, answers=reading, log=log, oom_before=oom_count())
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
        deadline = monotonic() + timeout_s
        try:
            self._send(encoded(message), deadline)
            answer = msgspec.json.decode(self._line(deadline), type=Answer)
        except BrokenPipeError:
            raise self._died(doing) from None
        except TimeoutError:
            self._kill()
            self.stop()
            raise WorkerDied(Outcome.TIMEOUT, f"{doing} took more than {timeout_s:g} s") from None
        except msgspec.MsgspecError as error:
            self._kill()
            self.stop()
            raise WorkerDied(Outcome.CRASHED, f"{doing}: the worker's answer is none: {error}") from None
        if answer.no_memory:
            self.stop()
            raise WorkerDied(Outcome.NO_MEMORY, f"{doing}: {answer.no_memory}")
        self.oom_before = oom_count()
        return answer

    def _send(self, message: bytes, deadline: float) -> None:
        """A worker that does not read cannot make its parent wait. Raises BrokenPipeError, TimeoutError."""
        assert self.process.stdin is not None
        pipe, left = self.process.stdin.fileno(), memoryview(message)
        while left:
            if not select.select([], [pipe], [], max(0.0, deadline - monotonic()))[1]:
                raise TimeoutError
            left = left[os.write(pipe, left) :]

    def _line(self, deadline: float) -> bytes:
        """The next message. Raises BrokenPipeError where none will come, TimeoutError."""
        while b"\n" not in self._pending:
            if not select.select([self.answers], [], [], max(0.0, deadline - monotonic()))[0]:
                raise TimeoutError
            chunk = os.read(self.answers, 1 << 16)
            if not chunk:
                raise BrokenPipeError
            self._pending += chunk
        line, _, self._pending = self._pending.partition(b"\n")
        return line

    def _died(self, doing: str) -> WorkerDied:
        self.stop()
        said = _last_line(self.log)
        outcome, why = self._ending(self.process.returncode, said)
        return WorkerDied(outcome, f"{doing}: the worker {why} (see {self.log.name})")

    def _ending(self, code: int | None, said: str) -> tuple[Outcome, str]:
        """How the process ended, by its exit code and the last line that it said."""
        if code == -signal.SIGKILL:
            no_memory, by = killed_reason(self.oom_before, oom_count())
            return (Outcome.NO_MEMORY if no_memory else Outcome.CRASHED), f"was ended by {by}"
        outcome = Outcome.NO_MEMORY if any(words in said for words in _OUT_OF_MEMORY) else Outcome.CRASHED
        if code is None:
            return outcome, "answers no more and cannot be ended"
        ended = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
        return outcome, f"{ended}: {said}" if code >= 0 or outcome is Outcome.NO_MEMORY else ended

    def _kill(self) -> None:
        """The worker leads a session of its own, so whatever it started ends with it, whether it listens or not."""
        for number, patience_s in ((signal.SIGTERM, _LAST_WORDS_S), (signal.SIGKILL, _GRACE_S)):
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)
            with suppress(subprocess.TimeoutExpired):  # one that a driver holds in the kernel does not even get SIGKILL
                self.process.wait(patience_s)


def _started(command: Sequence[str], log: Path, answers: int) -> subprocess.Popen[bytes]:
    """A process with a session of its own, that no message can block. Raises OSError."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            pass_fds=(answers,),
            start_new_session=True,
        )
    assert process.stdin is not None
    os.set_blocking(process.stdin.fileno(), False)
    return process


def _close(pipe: IO[bytes] | None) -> None:
    if pipe is not None:
        with suppress(BrokenPipeError):
            pipe.close()


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1][:200] if lines else "no output"
