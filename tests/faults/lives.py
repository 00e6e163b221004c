"""Sweeps in processes that are ended from outside: begun, killed, gone on with, and what their log then holds."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

from ktbench import cli
from ktbench.cli import show, sweep
from ktbench.config import Request
from ktbench.host.environment import environment
from ktbench.report.speed_table import table_of
from ktbench.report.write import write_report
from ktbench.results import LOG_NAME, Run, StoreError, read_run
from ktbench.results.rows import rows_of
from ktbench.run import execute, worker
from ktbench.run.request import Planned, plan_request, read_request
from ktbench.run.sweep import Sweep
from ktbench.spec.record import Record
from tests.faults.steady import forked_worker

RUN = "hurt"
ROUNDS = 6
SWEEP = (
    "sweep",
    "sweep.arms=['base','skipping=1','deferral=1']",
    "workload.batch=1,2",
    "model=tiny",
    "model.layers=2",
    "workload.prompt=8",
    "workload.steps=2",
    f"measure.max_rounds={ROUNDS}",
)
PATIENCE_S = 60.0  # of a machine with much else to do
Prepare = Callable[[], object]
# Figures take longer than a whole life.
FORMATS = ("md", "csv", "json", "tex")


@cache
def machine() -> object:
    """This machine and code as they are at first: others may edit the code while sweeps go on."""
    return environment()


@cache
def planned(timeout_s: float) -> tuple[Request, Planned]:
    """The request of `SWEEP` and its cells: composing it takes longer than the sweep."""
    asked = read_request((*SWEEP[1:], f"measure.turn_timeout_s={timeout_s}"))
    return asked, plan_request(asked)


def _read(timeout_s: float, words: Sequence[str]) -> Request:
    """As `read_request` of `SWEEP` with a run to begin or to go on with."""
    given = dict(word.split("=", 1) for word in words if word.startswith(("resume=", "run_name=")))
    return replace(planned(timeout_s)[0], resume=given.get("resume"), run_name=given.get("run_name"))


@dataclass(kw_only=True)
class Life:
    """One process with a command of ktbench in `folder`, its output in files."""

    folder: Path
    words: Sequence[str]
    scripts: Mapping[str, str] = field(default_factory=dict)
    prepare: Prepare = lambda: None
    timeout_s: float = PATIENCE_S
    pid: int = 0
    code: int | None = None

    def start(self) -> Life:
        """Fork: the child is as good as a fresh process, but has everything loaded."""
        machine(), planned(self.timeout_s)
        self.said_before = len(self.said())
        self.pid = os.fork()
        if self.pid == 0:
            self._live()
        return self

    def kill(self) -> None:
        """As the kernel, a batch system or a power button would: nothing is asked."""
        os.kill(self.pid, signal.SIGKILL)

    def end(self) -> int:
        """Exit code; below 0 the signal that ended it."""
        if self.code is None:
            self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.code

    def is_over(self) -> bool:
        """Whether it has ended."""
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if pid else None
        return self.code is not None

    def said(self) -> list[str]:
        """Lines of stderr, of all lives in this folder."""
        file = self.folder / "stderr.txt"
        return file.read_text(errors="replace").splitlines() if file.exists() else []

    def message(self) -> str:
        """The last line that this life said."""
        lines = [line for line in self.said()[self.said_before :] if line.strip()]
        return lines[-1] if lines else ""

    def told(self) -> int:
        """Turns that it said were over: those are promised."""
        return sum(line.startswith("  round ") for line in self.said()[self.said_before :])

    def _live(self) -> None:
        code = 1
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have it ignored in what it starts
            os.chdir(self.folder)
            for number, name in ((1, "stdout.txt"), (2, "stderr.txt")):
                os.dup2(os.open(name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666), number)
            with ExitStack() as stack:
                stack.enter_context(_to(1, "stdout"))
                stack.enter_context(_to(2, "stderr"))
                stack.enter_context(patch.object(worker, "_started", forked_worker(self.scripts)))
                stack.enter_context(patch.object(execute, "environment", machine))
                stack.enter_context(patch.object(sweep, "read_request", partial(_read, self.timeout_s)))
                stack.enter_context(patch.object(sweep, "plan_request", lambda asked: planned(self.timeout_s)[1]))
                stack.enter_context(patch.object(show, "write_report", partial(write_report, formats=FORMATS)))
                if hasattr(execute, "timing"):  # sweeps that time nothing need not wait for others of this host
                    stack.enter_context(patch.object(execute, "timing", lambda *words, **options: nullcontext()))
                self.prepare()
                code = cli.main(self.words)
        except BaseException:
            import traceback

            os.write(2, traceback.format_exc().encode())
        finally:
            os._exit(code)


def _to(number: int, name: str) -> object:
    return patch(f"sys.{name}", open(number, "w", closefd=False))


def sweep_words(*, done: bool) -> tuple[str, ...]:
    """The command that begins the sweep, or goes on with what there is of it."""
    return (*SWEEP, f"resume={RUN}" if done else f"run_name={RUN}")


def hurt_folder(folder: Path) -> Path:
    """Where the run lies."""
    return folder / "runs" / RUN


def is_planned(folder: Path) -> bool:
    """Whether there is a run to go on with."""
    try:
        read_run(hurt_folder(folder))
    except StoreError:
        return False
    return True


def records_of(folder: Path) -> tuple[Record, ...]:
    """Records on disk, none where not even a plan is."""
    return read_run(hurt_folder(folder)).records if is_planned(folder) else ()


def begin(folder: Path, **how: Any) -> Life:
    """Begin the sweep in a folder, or go on with it."""
    folder.mkdir(parents=True, exist_ok=True)
    return Life(folder=folder, words=sweep_words(done=is_planned(folder)), **how).start()


def pauses(after: int) -> Prepare:
    """A sweep that rests once it has kept so many records, so that there is time to do something to it."""

    def prepare() -> None:
        keep, kept_so_far = Sweep._keep, count(1)

        def kept(self: Sweep, record: Record) -> None:
            keep(self, record)
            if next(kept_so_far) == after:
                time.sleep(2 * PATIENCE_S)

        Sweep._keep = kept  # type: ignore[method-assign]

    return prepare


def table(folder: Path) -> tuple[object, ...]:
    """What the table of the run says of its cells."""
    run = read_run(hurt_folder(folder))
    shown = table_of(run, rows_of(run))
    return tuple(column.heading for column in shown.columns), shown.cells, shown.control_cells


def doubled(run: Run) -> int:
    """Turns that were measured more than once, beyond the first."""
    turns = Counter((record.cell, record.round) for record in run.records if record.outcome.timed)
    return sum(count - 1 for count in turns.values())


def missing(run: Run) -> int:
    """Planned turns without a measurement, of rounds that any cell took."""
    rounds = {record.round for record in run.records}
    timed = {(record.cell, record.round) for record in run.records if record.outcome.timed}
    return sum((cell.key, number) not in timed for cell in run.header.cells for number in rounds)


def wait_until(condition: Callable[[], bool], limit_s: float = 60.0) -> None:
    """Raises AssertionError where it does not come true in time."""
    until = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.005)


def log_bytes(folder: Path) -> int:
    """How much of the log is there."""
    file = hurt_folder(folder) / LOG_NAME
    return file.stat().st_size if file.exists() else 0
