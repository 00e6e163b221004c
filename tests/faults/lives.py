"""Sweeps in processes that are ended from outside: begun, killed, gone on with, and what their log then holds."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

from ktbench.cli import show, sweep
from ktbench.config import Request
from ktbench.host.environment import environment
from ktbench.report.speed_table import table_of
from ktbench.report.write import write_report
from ktbench.results import LOG_NAME, read_run
from ktbench.results.rows import rows_of
from ktbench.run import execute, worker
from ktbench.run.request import CellPlan, plan_request, read_request
from ktbench.run.sweep import Sweep
from ktbench.spec.record import Record
from tests.faults.forking import Command
from tests.faults.runs import begun_or_resumed, hurt
from tests.faults.steady import forked_worker

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
def planned(timeout_s: float) -> tuple[Request, CellPlan]:
    """The request of `SWEEP` and its cells: composing it takes longer than the sweep."""
    asked = read_request((*SWEEP[1:], f"measure.turn_timeout_s={timeout_s}"))
    return asked, plan_request(asked)


def _read(timeout_s: float, words: Sequence[str]) -> Request:
    """As `sweep_request` of `SWEEP` with a run to begin or to go on with."""
    given = dict(word.split("=", 1) for word in words if word.startswith(("resume=", "run_name=")))
    return replace(planned(timeout_s)[0], resume=given.get("resume"), run_name=given.get("run_name"))


@dataclass(kw_only=True)
class Life(Command):
    """One sweep of `SWEEP` with steady workers; a worker that `scripts` names by its cell's label misbehaves."""

    scripts: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = PATIENCE_S

    def load(self) -> None:
        machine(), planned(self.timeout_s)

    def patch(self) -> None:
        for where, name, stands_for in (
            (worker, "_start_process", forked_worker(self.scripts)),
            (worker, "_TERMINATE_S", 0.1),
            (execute, "environment", machine),
            (sweep, "sweep_request", partial(_read, self.timeout_s)),
            (sweep, "plan_request", lambda asked: planned(self.timeout_s)[1]),
            (show, "write_report", partial(write_report, formats=FORMATS)),
            (execute, "timing", lambda *words, **options: nullcontext()),  # nothing is timed
        ):
            patch.object(where, name, stands_for).start()


def begin(folder: Path, **how: Any) -> Life:
    """Begin the sweep in a folder, or go on with it."""
    return Life(folder=folder, words=(*SWEEP, begun_or_resumed(folder)), **how).start()


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
    run = read_run(hurt(folder))
    shown = table_of(run, rows_of(run))
    return tuple(column.heading for column in shown.columns), shown.cells, shown.control_cells


def wait_until(condition: Callable[[], bool], limit_s: float = 60.0) -> None:
    """Raises AssertionError where it does not come true in time."""
    until = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.005)


def log_bytes(folder: Path) -> int:
    """How much of the log is there."""
    file = hurt(folder) / LOG_NAME
    return file.stat().st_size if file.exists() else 0
