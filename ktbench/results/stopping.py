"""The stopping criterion of a sweep: initialise, add the records of a round, is it finished, and why."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ktbench.results.intervals import Interval, interval_of, open_reason, rounds_text
from ktbench.results.row import Row, groups_of
from ktbench.results.rows import judged_values, row_of
from ktbench.results.settings import cell_settings
from ktbench.results.speedups import Values
from ktbench.spec.record import Cell, Part, Record
from ktbench.spec.run_spec import MeasureSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class Stopping:
    """Whether a sweep has reached the precision goal or a ceiling after so many `rounds`.

    `values` are by name of a cell and by round, or by block of rounds where weights are loaded anew. None: the cell
    ran, but its value cannot be compared and does not count. A cell without a value in the last round, or its block,
    has dropped out and is not waited for. `measure.goal` is the
    relative half-width that every other interval must reach (0.05: ±5 %), not before `min_rounds`. The caller passes
    the time spent since the beginning.
    """

    measure: MeasureSpec
    values: Mapping[str, Values] = field(default_factory=dict)
    rounds: int = 0
    minutes: float = 0.0

    def finished(self) -> bool:
        """Whether no further round is needed or allowed."""
        return bool(self._ending())

    def why(self) -> str:
        """Which condition ended it, and which was not met; before the end, what it waits for."""
        return self._ending() or f"going on after {rounds_text(self.rounds)}: {self._waiting()}"

    def _ending(self) -> str:
        measure, done = self.measure, f"after {rounds_text(self.rounds)}"
        running = self._running()
        if self.rounds and not running:
            return f"nothing left to measure {done}"
        if self.rounds >= measure.min_rounds and running and not self._open():
            return f"goal: every interval is within ±{measure.goal:.1%} {done}"
        if self.rounds >= measure.max_rounds:
            return f"ceiling of {measure.max_rounds} rounds: {self._waiting()}"
        if self.minutes >= measure.max_minutes:
            return f"ceiling of {measure.max_minutes:g} minutes {done}: {self._waiting()}"
        return ""

    def _running(self) -> list[str]:
        last = self.measure.block_of(self.rounds - 1)
        return sorted(name for name, values in self.values.items() if last in values)

    def _open(self) -> dict[str, Interval | None]:
        """Intervals that are too wide; None where there is no value yet."""
        intervals = {name: interval_of(self.values[name].values()) for name in self._running()}
        return {
            name: found for name, found in intervals.items() if found is None or not found.closed(self.measure.goal)
        }

    def _waiting(self) -> str:
        if not self.rounds:
            return "the first one was not finished"
        still, goal = self._open(), self.measure.goal
        if not still:
            return f"every interval is within ±{goal:.1%}, {self.measure.min_rounds} rounds are required"
        shown = sorted(still, key=lambda name: _openness(still[name]), reverse=True)[:_MOST_NAMED]
        widths = [f"{name} {_width(interval)}" for name, interval in still.items() if name in shown]
        if left := len(still) - len(shown):
            widths.append(f"{left} more")
        return f"{len(still)} of {len(self._running())} intervals wider than ±{goal:.1%} ({', '.join(widths)})"


# A sweep of many cells names the ones that are furthest from the goal.
_MOST_NAMED = 6


def _openness(interval: Interval | None) -> float:
    """How far an interval is from the goal, to sort by: those without enough values come first."""
    return interval.half_width if interval is not None and interval.sound else math.inf


def _width(interval: Interval | None) -> str:
    if interval is None:
        return "without a value, 6 needed"
    return f"±{interval.half_width:.1%}" if interval.sound else f"of {interval.n} values, 6 needed"


@dataclass(frozen=True, kw_only=True, slots=True)
class CellProgress:
    """How far a cell is after the rounds so far: done once it has failed or its interval has closed.

    `step_s` is None before its first trial and for a cell that failed; `why` says what failed or what is still open.
    """

    cell: Cell
    is_done: bool
    rounds: int
    step_s: Interval | None
    why: str


class SweepCriterion:
    """The stopping criterion of the cells that are measured together, from the rows of the rounds so far.

    `names` are what cells are called in `why`, by key.
    """

    def __init__(
        self, cells: Sequence[Cell], parts: Sequence[Part], measure: MeasureSpec, names: Mapping[str, str]
    ) -> None:
        self._cells, self._names = tuple(cells), names
        self._parts, self._settings = {part.name: part for part in parts}, cell_settings(cells)
        self._records: dict[str, dict[int, Record]] = {cell.key: {} for cell in cells}
        self._rows: dict[str, Row] = {}
        self._values: dict[str, Values] = {}
        self._stopping = Stopping(measure=measure)
        self._form(cells)

    @property
    def minutes(self) -> float:
        """Time that all records took."""
        return self._stopping.minutes

    def add(self, records: Iterable[Record], *, is_whole: bool = True) -> None:
        """One finished round: its records, those kept from an earlier session included, in the order of the log.

        One that ended before every cell had its turn is not `is_whole`, and does not count as a round. Of several
        records of one cell and round the last counts; the time of all does.
        """
        minutes, changed = self.minutes, set[str]()
        for record in records:
            minutes += record.took_s / 60
            self._records[record.cell][record.round] = record
            changed.add(record.cell)
        self._form(cell for cell in self._cells if cell.key in changed)
        named = {self._names.get(key, key): found for key, found in self._values.items()}
        rounds = self._stopping.rounds + is_whole
        self._stopping = replace(self._stopping, values=named, rounds=rounds, minutes=minutes)

    def _form(self, cells: Iterable[Cell]) -> None:
        """Rows of `cells` anew, and of all the values that the precision goal is about."""
        for cell in cells:
            records = tuple(record for _, record in sorted(self._records[cell.key].items()))
            self._rows[cell.key] = row_of(cell, self._parts[cell.part], self._settings[cell.key], records)
        for group in groups_of([*self._rows.values()]):
            self._values |= {row.cell: judged_values(row, group) for row in group}

    def finished(self) -> bool:
        """Whether no further round is needed or allowed."""
        return self._stopping.finished()

    def why(self) -> str:
        """Which condition ended it; before the end, what it waits for."""
        return self._stopping.why()

    def progress(self) -> tuple[CellProgress, ...]:
        """How far each cell is, in the order of the cells."""
        return tuple(self._progress(cell, self._rows[cell.key]) for cell in self._cells)

    def _progress(self, cell: Cell, row: Row) -> CellProgress:
        has_failed = bool(row.records) and not row.timed
        why = row.ending if has_failed else open_reason([*self._values[cell.key].values()], cell.spec.measure)
        why = why if row.records else "not measured yet"
        return CellProgress(
            cell=cell,
            is_done=has_failed or not why,
            rounds=len(row.trial_times),
            step_s=row.step_s,
            why=why,
        )
