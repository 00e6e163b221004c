"""What a person sees on stderr while a sweep runs, and when it is enough."""

from __future__ import annotations

import sys
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from statistics import median

from ktbench.cli.names import cell_names, listing
from ktbench.report.terminal import name_width, row_line
from ktbench.results import Run
from ktbench.results.row import Row, groups_of
from ktbench.results.rows import judged_values, rows_of
from ktbench.results.stopping import Stopping
from ktbench.spec.record import Cell, Outcome, Record
from ktbench.spec.run_spec import MeasureSpec


def say(line: str) -> None:
    """One line of progress. Nobody may be there to read it, and work goes on all the same."""
    with suppress(OSError):
        print(line, file=sys.stderr, flush=True)


def loading(cell: Cell) -> None:
    """A worker starts to load the weights of a cell."""
    say(f"loading {cell.spec.summary}")


def turns_ended(cells: Sequence[Cell]) -> Callable[[Record], None]:
    """What to call when a turn of one of these cells ended, well or not."""
    names = cell_names(cells)
    width = max((len(name) for name in names.values()), default=0)

    def turn_ended(record: Record) -> None:
        ended = f"{median(record.samples_s) * 1e3:.2f} ms/step" if record.samples_s else _failure(record)
        turn = "simulated" if record.provenance == "simulated" else f"round {record.round + 1:>2}"
        say(f"  {turn}  {names[record.cell]:<{width}} {ended}")

    return turn_ended


def _failure(record: Record) -> str:
    return f"{record.outcome}: {record.why}"


def round_ended(run: Run, measure: MeasureSpec, round_number: int) -> str:
    """Shows each row once when it is done, and what is open. Why it is enough, or empty when it is not."""
    now = _until(run, round_number)
    rows, before = rows_of(now), rows_of(_until(run, round_number - 1))
    say("")
    for line in standing(now, rows, {row.cell for row in before if _is_done(row)}):
        say(line)
    criterion = replay(now, rows, measure, round_number)
    say(f"{spent_minutes(now):.1f} of at most {measure.max_minutes:g} minutes; {criterion.why()}\n")
    return criterion.why() if criterion.finished() else ""


def _until(run: Run, round_number: int) -> Run:
    """The run as it was after a round."""
    return replace(run, records=tuple(record for record in run.records if record.round <= round_number))


def _is_done(row: Row) -> bool:
    """Whether a row has failed, or its interval has closed."""
    return row.outcome not in (None, Outcome.NOISY)


def standing(run: Run, rows: Sequence[Row], before: Container[str]) -> Iterator[str]:
    """Rows that are done now and were not `before` (cells), then those that are open; of several parts their number."""
    alone = len(run.header.parts) == 1
    for part in run.header.parts:
        mine = [row for row in rows if row.part == part.name]
        done = [row for row in mine if _is_done(row)]
        new = [row for row in done if row.cell not in before]
        yield from _listed("done" if alone else f"{part.name}, done", new, mine)
        if alone:
            yield from _listed("open", [row for row in mine if not _is_done(row)], mine)
        yield f"{'' if alone else f'{part.name}: '}{len(done)} of {len(mine)} rows done"


def _listed(heading: str, rows: Sequence[Row], among: Sequence[Row]) -> Iterator[str]:
    if rows:
        width = name_width(among)
        yield f"{heading}:"
        yield from listing(rows, lambda row: [row_line(row, width)], among)


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
