"""How shares of a sweep ended: whether anything is lacking, and the turns that a failed node has cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from ktbench.cli.progress import replay
from ktbench.results import Run
from ktbench.results.rows import rows_of
from ktbench.run.shares import only
from ktbench.spec.record import Cell, Environment, Outcome, Record
from ktbench.spec.run_spec import MeasureSpec


def is_done(run: Run, cells: Sequence[Cell], measure: MeasureSpec) -> bool:
    """Whether nothing is lacking of some cells: no turn failed that could succeed, and it was enough."""
    mine = only(run, cells, measure)
    ends = {record.cell: record for record in mine.latest().values()}
    failed = [r for r in mine.latest().values() if not r.outcome.timed and r.outcome is not Outcome.UNSUPPORTED]
    if failed or len(ends) < len(cells):
        return False
    last = max((record.round for record in ends.values()), default=0)
    measured = [record for record in ends.values() if record.provenance == "measured" and record.outcome.timed]
    return not measured or replay(mine, rows_of(mine), measure, last).finished()


def failures(run: Run, cells: Sequence[Cell], why: str, machine: Environment) -> Iterator[Record]:
    """The turn that each cell of a share lacks when its node has failed; none for cells that have failed themselves."""
    latest = run.latest()
    for cell in cells:
        mine = {number: record for (key, number), record in latest.items() if key == cell.key}
        if any(not record.outcome.timed for record in mine.values()) or (mine and cell.spec.machine is not None):
            continue
        yield Record(
            cell=cell.key,
            label=cell.label,
            round=1 + max(mine, default=-1),
            outcome=Outcome.CRASHED,
            why=why,
            provenance="measured" if cell.spec.machine is None else "simulated",
            code_id=machine.code_id,
            env_id=machine.env_id,
            sitting="",
            started=datetime.now(UTC).isoformat(timespec="seconds"),
        )
