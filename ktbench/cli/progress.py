"""What a person sees on stderr while a sweep runs, and when it is enough."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from statistics import median

from ktbench.cli.names import cell_names, listing
from ktbench.core.outcome import Outcome
from ktbench.core.record import Cell, Record
from ktbench.core.spec import MeasureSpec
from ktbench.report.compare import judged_values
from ktbench.report.row import Row, groups_of
from ktbench.report.rows import row_line, rows_of
from ktbench.stats.stopping import Stopping
from ktbench.store import Run


def say(line: str) -> None:
    """One line of progress."""
    print(line, file=sys.stderr, flush=True)


def loading(cell: Cell) -> None:
    """A worker starts to load the weights of a cell."""
    say(f"loading {cell.spec.summary}")


def turns_ended(cells: Sequence[Cell]) -> Callable[[Record], None]:
    """What to call when a turn of one of these cells ended, well or not."""
    names = cell_names(cells)
    width = max(len(name) for name in names.values())

    def turn_ended(record: Record) -> None:
        ended = f"{median(record.samples_s) * 1e3:.2f} ms/step" if record.samples_s else _failure(record)
        say(f"  round {record.round + 1:>2}  {names[record.cell]:<{width}} {ended}")

    return turn_ended


def _failure(record: Record) -> str:
    return f"{record.outcome}: {record.why}"


def round_ended(run: Run, measure: MeasureSpec, round_number: int) -> str:
    """Shows where the run stands. Why it is enough, or empty when it is not."""
    rows = rows_of(run)
    say("")
    for line in _standing(run, rows):
        say(line)
    criterion = replay(run, rows, measure, round_number)
    say(f"{spent_minutes(run):.1f} of at most {measure.max_minutes:g} minutes; {criterion.why()}\n")
    return criterion.why() if criterion.finished() else ""


def _standing(run: Run, rows: Sequence[Row]) -> Iterator[str]:
    """Every row, or of a run of several parts how many are done."""
    if len(run.header.parts) == 1:
        yield from listing(rows, lambda row: [row_line(row)])
        return
    for part in run.header.parts:
        timed = [row for row in rows if row.part == part.name and row.timed]
        noisy = sum(row.outcome is Outcome.NOISY for row in timed)
        yield f"{part.name}: {len(timed) - noisy} of {len(timed)} measured cells have reached the goal"


def replay(run: Run, rows: Sequence[Row], measure: MeasureSpec, round_number: int) -> Stopping:
    """The stopping criterion over the rounds on disk up to `round_number`, whichever sitting measured them."""
    criterion = Stopping(
        goal=measure.goal,
        min_rounds=measure.min_rounds,
        max_rounds=measure.max_rounds,
        max_minutes=measure.max_minutes,
    )
    names = cell_names(run.header.cells)
    values = {names[row.cell]: judged_values(row, group) for group in groups_of(rows) for row in group}
    for number in range(round_number + 1):
        of_round = {name: by_round[number] for name, by_round in values.items() if number in by_round}
        criterion.add(of_round, spent_minutes(run, number))
    return criterion


def spent_minutes(run: Run, last_round: int | None = None) -> float:
    """Minutes of turns in all rounds, or in those up to one."""
    took_s = (record.took_s for record in run.records if last_round is None or record.round <= last_round)
    return sum(took_s) / 60
