"""The parent's handle on one worker process. The parent sleeps in `select` while the worker runs."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import IO

import msgspec

from ktbench.engine.loading.progress import Loading
from ktbench.engine.protocol import Unsupported
from ktbench.files import append_to
from ktbench.host.pauses import count_pauses, pauses
from ktbench.host.software import find_peer
from ktbench.run.child import OomCount, ending_of, oom_count
from ktbench.run.messages import OpenSession, Response, TraceRequest, TrialRequest, WorkerRequest, encode_line
from ktbench.spec.errors import error_text
from ktbench.spec.peers import OURS, peer_of
from ktbench.spec.record import Cell, Outcome, Record
from ktbench.spec.run_spec import RunSpec
from ktbench.spec.timeline import Timeline

_MODULE = "ktbench.run.worker_process"
SERVE: tuple[str, ...] = (sys.executable, "-m", _MODULE)


def serve_command(spec: RunSpec) -> Sequence[str]:
    """The command of the worker for a spec's system. A peer's environment comes first on its path, then ours."""
    if spec.system == OURS:
        return SERVE
    peer = find_peer(peer_of(spec.system), spec.peer)
    if peer is None or peer.python == sys.executable:
        return SERVE
    ours = sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})
    code = (
        f"import site, sys; [site.addsitedir(path) for path in {ours!r}]; from {_MODULE} import main; sys.exit(main())"
    )
    return (peer.python, "-c", code)


OnLoading = Callable[[Loading], None]
_GRACE_S = 5.0
# After SIGTERM, before SIGKILL.
_TERMINATE_S = 2.0


class WorkerDied(Exception):
    """The worker ended or was killed before it responded."""

    def __init__(self, outcome: Outcome, why: str) -> None:
        super().__init__(why)
        self.outcome, self.why = outcome, why


class _Deadline:
    """A time limit. It restarts if this process was stopped, since the awaited one may have been stopped as well."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self.restart()

    def restart(self) -> None:
        """Start the whole time again."""
        self._ends_s, self._paused = monotonic() + self._limit_s, pauses()

    def wait(self, is_ready: Callable[[float], object]) -> None:
        """Wait with `is_ready`, which waits for at most the given seconds. Raises TimeoutError."""
        while not is_ready(max(0.0, self._ends_s - monotonic())):
            if pauses() == self._paused:
                raise TimeoutError
            self.restart()


@dataclass(kw_only=True)
class Worker:
    """A running worker. Use `start`, then `trial` and `timeline` as often as needed, then `stop`."""

    process: subprocess.Popen[bytes]
    responses: int
    log: Path
    oom_before: OomCount
    _pending: bytes = b""

    @classmethod
    def start(
        cls,
        opened: OpenSession,
        log: Path,
        timeout_s: float,
        command: Sequence[str],
        on_loading: OnLoading = lambda loading: None,
    ) -> Worker:
        """Start a process that loads the weights of `opened.cells`, and wait until it is ready.

        Its output goes to the file `log`; `on_loading` receives its progress. Raises WorkerDied.
        """
        count_pauses()
        reading, writing = os.pipe()
        try:
            process = _start_process([*command, str(writing)], log, writing)
        except OSError as error:
            os.close(reading)
            raise WorkerDied(Outcome.CRASHED, f"the worker could not be started: {error_text(error)}") from None
        finally:
            os.close(writing)
        worker = cls(process=process, responses=reading, log=log, oom_before=oom_count())
        try:
            why = worker._request(opened, timeout_s, "loading", on_loading).unsupported
        except KeyboardInterrupt:
            worker._kill()
            worker.stop()
            raise
        if why:
            worker.stop()
            raise WorkerDied(Outcome.UNSUPPORTED, why)
        return worker

    def trial(self, cell: Cell, round_number: int, timeout_s: float, logits: Path | None = None) -> Record:
        """The record of one trial; `logits` is the file with the logits of its group. Raises WorkerDied."""
        request = TrialRequest(cell=cell, round=round_number, logits=None if logits is None else str(logits))
        record = self._request(request, timeout_s, "the trial").record
        if record is None:
            raise WorkerDied(Outcome.CRASHED, "the worker responded without a record")
        return record

    def timeline(self, cell: Cell, timeout_s: float) -> Timeline:
        """The timeline of one step of a cell. Raises Unsupported, WorkerDied."""
        response = self._request(TraceRequest(cell=cell), timeout_s, "the trace")
        if response.timeline is None:
            raise Unsupported(response.unsupported or "the worker responded without a timeline")
        return response.timeline

    def stop(self) -> None:
        """End the process: it exits when its input closes, or is killed after a while."""
        _close(self.process.stdin)
        try:
            self.process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            self._kill()
        if self.responses >= 0:
            os.close(self.responses)
            self.responses = -1

    def _request(
        self,
        message: OpenSession | WorkerRequest,
        timeout_s: float,
        doing: str,
        on_loading: OnLoading = lambda loading: None,
    ) -> Response:
        deadline = _Deadline(timeout_s)
        try:
            self._send(encode_line(message), deadline)
            while (response := msgspec.json.decode(self._line(deadline), type=Response)).loading is not None:
                on_loading(response.loading)
                deadline.restart()  # however large the model: loading progresses
        except BrokenPipeError:
            raise self._death(doing) from None
        except TimeoutError:
            self._kill()
            self.stop()
            raise WorkerDied(Outcome.TIMEOUT, f"{doing} took more than {timeout_s:g} s") from None
        except msgspec.MsgspecError as error:
            self._kill()
            self.stop()
            raise WorkerDied(Outcome.CRASHED, f"{doing}: invalid response of the worker: {error}") from None
        if response.no_memory:
            self.stop()
            raise WorkerDied(Outcome.NO_MEMORY, f"{doing}: {response.no_memory}")
        self.oom_before = oom_count()
        return response

    def _send(self, message: bytes, deadline: _Deadline) -> None:
        """Write without blocking on a worker that does not read. Raises BrokenPipeError, TimeoutError."""
        assert self.process.stdin is not None
        pipe, left = self.process.stdin.fileno(), memoryview(message)
        while left:
            deadline.wait(lambda left_s: select.select([], [pipe], [], left_s)[1])
            left = left[os.write(pipe, left) :]

    def _line(self, deadline: _Deadline) -> bytes:
        """The next message. Raises BrokenPipeError if the worker has ended, and TimeoutError."""
        while b"\n" not in self._pending:
            deadline.wait(lambda left_s: select.select([self.responses], [], [], left_s)[0])
            chunk = os.read(self.responses, 1 << 16)
            if not chunk:
                raise BrokenPipeError
            self._pending += chunk
        line, _, self._pending = self._pending.partition(b"\n")
        return line

    def _death(self, doing: str) -> WorkerDied:
        self.stop()
        outcome, why = ending_of(self.process.returncode, _last_line(self.log), self.oom_before)
        return WorkerDied(outcome, f"{doing}: the worker {why} (see {self.log.name})")

    def _kill(self) -> None:
        """Kill the worker's process group: it leads its own session, so that everything it started ends with it."""
        for number, patience_s in ((signal.SIGTERM, _TERMINATE_S), (signal.SIGKILL, _GRACE_S)):
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)
            with suppress(subprocess.TimeoutExpired):  # a process blocked in a driver does not react to SIGKILL
                self.process.wait(patience_s)


def _start_process(command: Sequence[str], log: Path, responses: int) -> subprocess.Popen[bytes]:
    """A process with its own session and a non-blocking input. Raises OSError."""
    with append_to(log) as output:
        process = subprocess.Popen(
            command,
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            pass_fds=(responses,),
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
