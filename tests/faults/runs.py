"""The run that faults are done to, and what its log holds of it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from ktbench.results import Run, StoreError, read_run
from ktbench.spec.record import Record

RUN = "hurt"


def hurt(folder: Path) -> Path:
    """Where the run is."""
    return folder / "runs" / RUN


def is_planned(folder: Path) -> bool:
    """Whether there is a run to resume."""
    try:
        read_run(hurt(folder))
    except StoreError:
        return False
    return True


def begun_or_resumed(folder: Path) -> str:
    """The word of a command that begins the run, or goes on with what there is of it."""
    return f"resume={RUN}" if is_planned(folder) else f"run_name={RUN}"


def records_of(folder: Path) -> tuple[Record, ...]:
    """Records on disk, none where not even a plan is."""
    return read_run(hurt(folder)).records if is_planned(folder) else ()


def facts_of(folder: Path) -> tuple[object, ...]:
    """All that a run has kept, in order."""
    if not is_planned(folder):
        return ()
    run = read_run(hurt(folder))
    return (*run.records, *run.sample_results, *run.task_results)


def doubled(run: Run) -> int:
    """Trials and tasks that were measured more than once, beyond the first."""
    trials = Counter((record.cell, record.round) for record in run.records if record.outcome.timed)
    tasks = Counter((end.cell, end.task) for end in run.task_results)
    return sum(count - 1 for count in (*trials.values(), *tasks.values()))


def missing(run: Run) -> int:
    """Planned trials without a measurement, of rounds that any cell took."""
    rounds = {record.round for record in run.records}
    timed = {(record.cell, record.round) for record in run.records if record.outcome.timed}
    return sum((cell.key, number) not in timed for cell in run.header.cells for number in rounds)
