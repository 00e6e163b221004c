"""What a person sees on stderr while a sweep runs, and when it is enough."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from statistics import median

from ktbench.core.record import Cell, Record
from ktbench.core.spec import MeasureSpec
from ktbench.report.compare import judged_values
from ktbench.report.row import Row, groups_of
from ktbench.report.rows import row_line, rows_of
from ktbench.stats.stopping import Stopping
from ktbench.store import Run

_GIB = 2**30


def say(line: str) -> None:
    """One line of progress."""
    print(line, file=sys.stderr, flush=True)


def loading(cell: Cell) -> None:
    """A worker starts to load the weights of a cell."""
    model = cell.spec.model
    say(f"loading {cell.spec.summary}: {model.shape.routed_params * 2 / _GIB:.1f} GiB of experts")


def turn_ended(record: Record) -> None:
    """A turn ended, well or not."""
    speed = f"{median(record.samples_s) * 1e3:.2f} ms/step" if record.samples_s else f"{record.outcome}: {record.why}"
    say(f"  round {record.round + 1:>2}  {record.label:<14} {speed}")


def round_ended(run: Run, measure: MeasureSpec, round_number: int) -> str:
    """Shows the rows so far. Why it is enough, or empty when it is not."""
    rows = rows_of(run)
    say("")
    for row in rows:
        say(row_line(row))
    criterion = replay(run, rows, measure, round_number)
    say(f"{spent_minutes(run):.1f} of at most {measure.max_minutes:g} minutes; {criterion.why()}\n")
    return criterion.why() if criterion.finished() else ""


def replay(run: Run, rows: Sequence[Row], measure: MeasureSpec, round_number: int) -> Stopping:
    """The stopping criterion over the rounds on disk up to `round_number`, whichever sitting measured them."""
    criterion = Stopping(
        goal=measure.goal,
        min_rounds=measure.min_rounds,
        max_rounds=measure.max_rounds,
        max_minutes=measure.max_minutes,
    )
    values = {_name(row, rows): judged_values(row, group) for group in groups_of(rows) for row in group}
    for number in range(round_number + 1):
        of_round = {name: by_round[number] for name, by_round in values.items() if number in by_round}
        criterion.add(of_round, spent_minutes(run, number))
    return criterion


def spent_minutes(run: Run, last_round: int | None = None) -> float:
    """Minutes of turns in all rounds, or in those up to one."""
    took_s = (record.took_s for record in run.records if last_round is None or record.round <= last_round)
    return sum(took_s) / 60


def _name(row: Row, rows: Sequence[Row]) -> str:
    """The label, with the start of the cell's key where several cells of a sweep share it."""
    shared = sum(other.label == row.label for other in rows) > 1
    return f"{row.label} ({row.cell[:6]})" if shared else row.label
