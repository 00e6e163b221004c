"""The stopping criterion of a sweep: initialise, add the records of a round, is it finished, and why."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ktbench.results.intervals import Interval, by_block, interval_of
from ktbench.results.settings import by_key, cell_settings
from ktbench.results.speedups import TrialTime, Values, goal_values, trial_time
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
        return self._ending() or f"going on after {_rounds(self.rounds)}: {self._waiting()}"

    def _ending(self) -> str:
        measure, done = self.measure, f"after {_rounds(self.rounds)}"
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


def open_reason(values: Sequence[float | None], measure: MeasureSpec) -> str:
    """Why the interval of the values of rounds, or of blocks of them, has not reached the goal.

    Empty where it has, or where there are no values. None stands for a round that was measured, but with the cores
    elsewhere than those of the baseline.
    """
    found, interval, goal = [value for value in values if value is not None], interval_of(values), measure.goal
    if not values or (interval and interval.closed(goal)):
        return ""
    if interval and interval.sound:
        return f"the interval stayed at ±{interval.half_width:.1%}, the goal was ±{goal:.1%}"
    if len(found) < len(values):
        counted = _rounds(len(values), measure.unit)
        return f"{len(found)} of {counted} compare cores in the same place, an interval of 95% needs 6"
    return f"{_rounds(len(found), measure.unit)} of the 6 that an interval of 95% needs"


def _rounds(count: int, unit: str = "round") -> str:
    return f"{count} {unit}{'' if count == 1 else 's'}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Standing:
    """How far a cell is after the rounds so far: done once it has failed or its interval has closed.

    `step_s` is None before its first trial and for a cell that failed; `why` says what failed or what is still open.
    """

    cell: Cell
    is_done: bool
    rounds: int
    step_s: Interval | None
    why: str


class SweepCriterion:
    """The stopping criterion of the cells that are measured together, kept up to date from their records alone.

    Equals what the rows of the whole log would give, without reading the log again or forming rows. `names` are what
    cells are called in `why`, by key.
    """

    def __init__(
        self, cells: Sequence[Cell], parts: Sequence[Part], measure: MeasureSpec, names: Mapping[str, str]
    ) -> None:
        self._cells, self._names = tuple(cells), names
        self._baselines = {part.name: part.baseline for part in parts}
        settings = cell_settings(cells)
        self._groups = by_key(((cell.part, *settings[cell.key].items()), cell) for cell in cells).values()
        self._trials: dict[str, dict[int, TrialTime | None]] = {cell.key: {} for cell in cells}
        self._failed: dict[str, str] = {}
        self._values: dict[str, Values] = {}
        self._stopping = Stopping(measure=measure)

    @property
    def minutes(self) -> float:
        """Time that all records took."""
        return self._stopping.minutes

    def add(self, records: Iterable[Record], *, is_whole: bool = True) -> None:
        """One finished round: its records, those kept from an earlier session included, in the order of the log.

        One that ended before every cell had its turn is not `is_whole`, and does not count as a round. Of several
        records of one cell and round the last counts; the time of all does.
        """
        minutes = self.minutes
        for record in records:
            minutes += record.took_s / 60
            self._trials[record.cell][record.round] = trial_time(record) if record.outcome.timed else None
            if not record.outcome.timed:
                self._failed[record.cell] = f"{record.outcome}: {record.why}"
        # Of all rounds, as a trial that fails changes what earlier ones are compared with.
        self._values = dict(self._goal_values())
        named = {self._names.get(key, key): found for key, found in self._values.items()}
        rounds = self._stopping.rounds + is_whole
        self._stopping = replace(self._stopping, values=named, rounds=rounds, minutes=minutes)

    def finished(self) -> bool:
        """Whether no further round is needed or allowed."""
        return self._stopping.finished()

    def why(self) -> str:
        """Which condition ended it; before the end, what it waits for."""
        return self._stopping.why()

    def standings(self) -> tuple[Standing, ...]:
        """How far each cell is, in the order of the cells."""
        return tuple(self._standing(cell) for cell in self._cells)

    def _standing(self, cell: Cell) -> Standing:
        steps = {number: trial.step_s for number, trial in self._timed(cell.key).items()}
        failed = "" if steps or not self._trials[cell.key] else self._failed[cell.key]
        measure = cell.spec.measure
        why = failed or (open_reason([*self._values[cell.key].values()], measure) if steps else "not measured yet")
        step_s = interval_of(by_block(steps, measure.block_of).values())
        return Standing(cell=cell, is_done=bool(failed) or not why, rounds=len(steps), step_s=step_s, why=why)

    def _timed(self, key: str) -> dict[int, TrialTime]:
        """Turns by round; none where a round failed, as in the rows of a report."""
        trials = {number: trial for number, trial in self._trials[key].items() if trial is not None}
        return trials if len(trials) == len(self._trials[key]) else {}

    def _goal_values(self) -> Iterator[tuple[str, Values]]:
        for group in self._groups:
            baseline = self._baselines[group[0].part]
            base = next((cell.key for cell in group if cell.role == "arm" and cell.label == baseline), "")
            control = next((cell.key for cell in group if cell.role == "control" and cell.arm == baseline), "")
            trials = {cell.key: self._timed(cell.key) for cell in group}
            for key, mine in trials.items():
                values = goal_values(mine, trials.get(base), trials.get(control), is_baseline=key == base)
                yield key, by_block(values, self._stopping.measure.block_of)
