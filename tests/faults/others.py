"""Another sweep, a clock that goes backwards, workers that misbehave, peers that are gone."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from unittest.mock import patch

from ktbench.results import find, read_run
from ktbench.run import messages, open_run
from ktbench.spec.record import Outcome
from tests.faults.findings import Finding
from tests.faults.kills import Undisturbed
from tests.faults.lives import PATIENCE_S, SWEEP, Life, begin, pauses, table, wait_until
from tests.faults.runs import RUN, doubled, hurt, missing, records_of

BAD_REQUEST, FAILED = 2, 4
DEADLINE_S = 3


def two_sweeps(folder: Path, undisturbed: Undisturbed) -> Finding:
    """A second sweep in the folder of one that runs, then again once that one is killed."""
    first = begin(folder, prepare=pauses(4))
    wait_until(lambda: len(records_of(folder)) == 4)
    before = records_of(folder)
    second = Life(folder=folder, words=(*SWEEP, f"resume={RUN}")).start()
    assert second.end() == BAD_REQUEST, second.message()
    message = second.message()
    assert f"process {first.pid} on " in message, message
    first.kill()
    first.end()
    third = begin(folder)
    assert third.end() == 0, third.message()
    run = read_run(hurt(folder))
    return Finding(
        fault="a second sweep in the same folder",
        times=1,
        happened=f"exit {BAD_REQUEST} before anything loads; once the first is dead the folder is free",
        message=message,
        lost=missing(run) + (run.records[: len(before)] != before) + (table(folder) != undisturbed.table),
        doubled=doubled(run),
    )


def clock_back(folder: Path, undisturbed: Undisturbed) -> Finding:
    """Every look at the wall clock is an hour before the one before."""

    def prepare() -> None:
        class Back(datetime):
            looks = 0

            @classmethod
            def now(cls, tz: object = None) -> datetime:
                cls.looks += 1
                return datetime(2030, 1, 1, tzinfo=tz) - cls.looks * timedelta(hours=1)  # type: ignore[arg-type]

        for module in (open_run, messages):
            patch.object(module, "datetime", Back).start()

    folder.mkdir(parents=True)
    names = [word for word in (*SWEEP, f"run_name={RUN}") if not word.startswith("run_name=")]
    for _ in range(2):
        life = Life(folder=folder, words=names, prepare=prepare).start()
        assert life.end() == 0, life.message()
    life = begin(folder, prepare=lambda: (prepare(), pauses(4)()))
    wait_until(lambda: len(records_of(folder)) == 4)
    life.kill()
    life.end()
    for older in folder.glob("runs/*/log.jsonl"):
        os.utime(older, (2e9, 2e9) if older.parent.name != RUN else (1e9, 1e9))
    with patch.object(find, "RUNS", folder / "runs"):
        assert find.find_run("latest").name == RUN
    life = begin(folder, prepare=prepare)
    assert life.end() == 0, life.message()
    run = read_run(hurt(folder))
    names = sorted(log.parent.name for log in folder.glob("runs/*/log.jsonl"))
    assert len(names) == 3 and all(record.took_s >= 0 for record in run.records), names
    return Finding(
        fault="the wall clock goes backwards",
        times=3,
        happened="names of runs stay apart, `latest` is the run started last, durations and the table are unharmed",
        message="",
        lost=missing(run) + (table(folder) != undisturbed.table),
        doubled=doubled(run),
    )


WORKERS = {
    "deaf": (Outcome.TIMEOUT, "a worker that ignores SIGTERM"),
    "stops": (Outcome.TIMEOUT, "a worker that is stopped (SIGSTOP)"),
    "eats": (Outcome.NO_MEMORY, "a worker beyond its memory limit (RLIMIT_AS)"),
    "killed": (Outcome.CRASHED, "a worker ended by SIGKILL from outside"),
    "dies": (Outcome.CRASHED, "a worker that crashes (SIGSEGV)"),
    "babbles": (Outcome.CRASHED, "a worker that answers nonsense"),
    "unplugged": (Outcome.CRASHED, "a peer's file that is gone when its turn comes"),
}


def bad_worker(folder: Path, script: str, prepare: Callable[[], object] = lambda: None) -> Finding:
    """One arm's worker does something bad in its first turn: that costs its cells, and no others."""
    outcome, fault = WORKERS.get(script, (Outcome.NO_MEMORY, "a worker that the kernel ends for want of memory"))
    timeout_s = DEADLINE_S if outcome is Outcome.TIMEOUT else PATIENCE_S
    life = begin(folder, scripts={"skipping=1": script}, prepare=prepare, timeout_s=timeout_s)
    assert life.end() == FAILED, (life.code, life.message())
    bad = {record.cell for record in records_of(folder) if not record.outcome.timed}
    assert len(bad) == 1, bad
    return _cost_of(fault, life, folder, outcome, bad)


def _cost_of(fault: str, life: Life, folder: Path, outcome: Outcome, bad: set[str]) -> Finding:
    run = read_run(hurt(folder))
    ends = [record for record in run.records if record.cell in bad]
    assert {record.outcome for record in ends} == {outcome}, [(one.outcome, one.why) for one in ends]
    assert not any("Traceback" in line for line in life.said()), life.said()
    rounds = {record.round for record in run.records if record.cell not in bad}
    timed = {(record.cell, record.round) for record in run.records if record.outcome.timed}
    others = [cell.key for cell in run.header.cells if cell.key not in bad]
    return Finding(
        fault=fault,
        times=len(ends),
        happened=f"exit {FAILED}; its cell is {outcome}, the others have all their {len(rounds)} rounds",
        message=ends[0].why,
        lost=sum((key, number) not in timed for key in others for number in rounds),
        doubled=doubled(run),
    )


def interrupted(folder: Path, undisturbed: Undisturbed) -> Finding:
    """SIGINT, as by Ctrl-C."""
    life = begin(folder, prepare=pauses(4))
    wait_until(lambda: len(records_of(folder)) == 4)
    os.kill(life.pid, signal.SIGINT)
    code, message = life.end(), life.message()
    assert code == 128 + signal.SIGINT, (code, message)
    life = begin(folder)
    assert life.end() == 0, life.message()
    run = read_run(hurt(folder))
    return Finding(
        fault="an interrupt (Ctrl-C)",
        times=1,
        happened="exit 130, resumed to the undisturbed table",
        message=message,
        lost=missing(run) + (table(folder) != undisturbed.table),
        doubled=doubled(run),
    )
