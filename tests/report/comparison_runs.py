"""Pairs of runs for comparisons: synthetic ones, moved to other machines, commits and times."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from ktbench.results import Log, Run, read_run
from ktbench.results.comparison import Comparison, compare_runs
from ktbench.spec.record import Environment, Outcome, Record
from tests.report.synthetic import MACHINE, Arm, Store

ARMS = (Arm(label="base", step_ms=182.0), Arm(label="+v", step_ms=61.0), Arm(label="+v+d", step_ms=60.0))
BEGUN = datetime(2026, 1, 1, tzinfo=UTC)
HOUR_S = 3600.0


def run_of(folder: Path, name: str, *, arms: tuple[Arm, ...] = ARMS, begun_s: float = 0.0, **settings: Any) -> Run:
    """A run of quiet turns, ten seconds each round, that began so many seconds after BEGUN."""
    rounds = settings.pop("every_s", 10.0)
    written = Store(arms=arms, run=name, drift=0.0, steps=1, seed=len(name), **settings).write(folder)
    return kept(replace(written, records=tuple(_at(r, begun_s + rounds * r.round) for r in written.records)))


def _at(record: Record, seconds: float) -> Record:
    return replace(record, started=(BEGUN + timedelta(seconds=seconds)).isoformat(timespec="seconds"))


def kept(run: Run) -> Run:
    """A changed run, written in place of what its folder holds."""
    (run.folder / "log.jsonl").unlink()
    log = Log(run.folder)
    log.append(run.header, *run.environments, *run.published, *run.sample_results, *run.task_results, *run.records)
    log.close()
    return read_run(run.folder)


def at_commit(run: Run, commit: str, *, dirty: bool = False, **header: Any) -> Run:
    """The run as measured by the code of a commit."""
    code = commit[:12]
    environment = replace(MACHINE, code_id=code, facts=MACHINE.facts | {"commit": commit, "dirty": dirty})
    return kept(_moved(replace(run, header=replace(run.header, code_id=code, **header)), environment))


def on_machine(run: Run, env_id: str, cpu: str) -> Run:
    """The run as measured on another machine."""
    environment = replace(MACHINE, env_id=env_id, facts=MACHINE.facts | {"cpu_model": cpu})
    return kept(_moved(replace(run, header=replace(run.header, env_id=env_id)), environment))


def _moved(run: Run, environment: Environment) -> Run:
    ids = {"code_id": environment.code_id, "env_id": environment.env_id}
    return replace(run, environments=(environment,), records=tuple(replace(record, **ids) for record in run.records))


def with_roofs(run: Run, factor: float) -> Run:
    """The run with so many times the read bandwidth next to its turns."""
    records = []
    for record in run.records:
        roofs = [replace(roof, read_bytes_per_s=factor * roof.read_bytes_per_s) for roof in record.roofs]
        records.append(replace(record, roofs=tuple(roofs)))
    return kept(replace(run, records=tuple(records)))


def doubtful(folder: Path) -> Comparison:
    """Two runs of which B has another commit, half the read bandwidth, a slower arm, a wrong one and one of its own."""
    slower = tuple(replace(arm, step_ms=2 * arm.step_ms) for arm in ARMS[:2])
    wrong = Arm(label="+v+d", outcome=Outcome.WRONG, why="output differs from float32")
    own = Arm(label="+v+l", step_ms=40.0)
    after = run_of(folder, "after", arms=(*slower, wrong, own), begun_s=HOUR_S)
    before = at_commit(run_of(folder, "before", arms=(*ARMS, Arm(label="+m"))), "a" * 40)
    return compare_runs(before, at_commit(with_roofs(after, 0.5), "b" * 40, dirty=True))
