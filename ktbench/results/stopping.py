"""The stopping criterion of a sweep: initialise, add the records of a round, is it finished, and why."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ktbench.results.intervals import Interval, median_interval
from ktbench.results.settings import cell_settings
from ktbench.results.turns import Turn, Turns, Values, goal_values, turn_of
from ktbench.spec.record import Cell, Part, Record
from ktbench.spec.run_spec import MeasureSpec


class Stopping:
    """Ends at the precision goal or at a ceiling. The caller passes the time spent; it reads no clock.

    `goal` is the relative half-width that every interval must reach (0.05: ±5 %), not before `min_rounds`.
    """

    def __init__(self, *, goal: float, min_rounds: int, max_rounds: int, max_minutes: float) -> None:
        self.goal = goal
        self.min_rounds, self.max_rounds, self.max_minutes = min_rounds, max_rounds, max_minutes
        self.rounds = 0
        self.minutes = 0.0
        self._values: dict[str, list[float]] = {}
        self._running: frozenset[str] = frozenset()

    def add(self, values: Mapping[str, float | None], minutes: float) -> None:
        """One round: a value for each cell that ran in it, and the minutes spent since the beginning.

        None: the cell ran, but its value cannot be compared and does not count. A cell that is missing has dropped out
        and is not waited for.
        """
        self.rounds += 1
        self.minutes = minutes
        self._running = frozenset(values)
        for name, value in values.items():
            self._values.setdefault(name, []).extend([] if value is None else [value])

    def finished(self) -> bool:
        """Whether no further round is needed or allowed."""
        return bool(self._ending())

    def why(self) -> str:
        """Which condition ended it, and which was not met; while it goes on, what it waits for."""
        return self._ending() or f"going on after {self._rounds_done()}: {self._waiting()}"

    def _ending(self) -> str:
        if self.rounds and not self._running:
            return f"nothing left to measure after {self._rounds_done()}"
        if self.rounds >= self.min_rounds and self._running and not self._open():
            return f"goal: every interval is within ±{self.goal:.1%} after {self._rounds_done()}"
        if self.rounds >= self.max_rounds:
            return f"ceiling of {self.max_rounds} rounds: {self._waiting()}"
        if self.minutes >= self.max_minutes:
            return f"ceiling of {self.max_minutes:g} minutes after {self._rounds_done()}: {self._waiting()}"
        return ""

    def _open(self) -> dict[str, Interval | None]:
        """Intervals that are too wide; None where there is no value yet."""
        values = {name: self._values[name] for name in sorted(self._running)}
        intervals = {name: median_interval(found) if found else None for name, found in values.items()}
        return {name: found for name, found in intervals.items() if found is None or not found.closed(self.goal)}

    def _waiting(self) -> str:
        still = self._open()
        if not still:
            return f"every interval is within ±{self.goal:.1%}, {self.min_rounds} rounds are required"
        widths = ", ".join(f"{name} {_width(interval)}" for name, interval in still.items())
        return f"{len(still)} of {len(self._running)} intervals wider than ±{self.goal:.1%} ({widths})"

    def _rounds_done(self) -> str:
        return _rounds(self.rounds)


def _width(interval: Interval | None) -> str:
    if interval is None:
        return "without a value, 6 needed"
    return f"±{interval.half_width:.1%}" if interval.sound else f"of {interval.n} values, 6 needed"


def open_reason(values: Sequence[float | None], goal: float) -> str:
    """Why the interval of the values has not reached the goal; empty where it has, or where there are no rounds.

    None stands for a round that was measured, but with the cores elsewhere than those of the baseline.
    """
    found = [value for value in values if value is not None]
    interval = median_interval(found) if found else None
    if not values or (interval and interval.closed(goal)):
        return ""
    if interval and interval.sound:
        return f"the interval stayed at ±{interval.half_width:.1%}, the goal was ±{goal:.1%}"
    if len(found) < len(values):
        return f"{len(found)} of {_rounds(len(values))} compare cores in the same place, an interval of 95% needs 6"
    return f"{_rounds(len(found))} of the 6 that an interval of 95% needs"


def _rounds(count: int) -> str:
    return f"{count} round{'' if count == 1 else 's'}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Standing:
    """How far a cell is after the rounds so far: done once it has failed or its interval has closed.

    `step_s` is None before its first turn and for a cell that failed; `why` says what failed or what is still open.
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
        self.minutes = 0.0
        self.rounds = 0
        self._cells, self._measure, self._names = tuple(cells), measure, names
        self._groups = _groups_of(cells, {part.name: part.baseline for part in parts})
        self._turns: dict[str, dict[int, Turn | None]] = {cell.key: {} for cell in cells}
        self._failed: dict[str, str] = {}
        self._stopping = self._replayed()

    def add(self, records: Iterable[Record]) -> None:
        """One finished round: its records, those kept from an earlier session included, in the order of the log.

        Of several records of one cell and round the last counts; the time of all does.
        """
        for record in records:
            self.minutes += record.took_s / 60
            self._turns[record.cell][record.round] = turn_of(record) if record.outcome.timed else None
            if not record.outcome.timed:
                self._failed[record.cell] = f"{record.outcome}: {record.why}"
        self.rounds += 1
        self._stopping = self._replayed()

    def finished(self) -> bool:
        """Whether no further round is needed or allowed."""
        return self._stopping.finished()

    def why(self) -> str:
        """Which condition ended it; while it goes on, what it waits for."""
        return self._stopping.why()

    def standings(self) -> tuple[Standing, ...]:
        """How far each cell is, in the order of the cells."""
        values = self._values()
        return tuple(self._standing(cell, values[cell.key]) for cell in self._cells)

    def _standing(self, cell: Cell, values: Values) -> Standing:
        turns = self._timed(cell.key)
        steps = [turn.step_s for turn in turns.values()]
        failed = "" if steps or not self._turns[cell.key] else self._failed[cell.key]
        why = failed or (open_reason([*values.values()], cell.spec.measure.goal) if steps else "not measured yet")
        step_s = median_interval(steps) if steps else None
        return Standing(cell=cell, is_done=bool(failed) or not why, rounds=len(steps), step_s=step_s, why=why)

    def _timed(self, key: str) -> dict[int, Turn]:
        """Turns by round; none where a round failed, as in the rows of a report."""
        turns = {number: turn for number, turn in self._turns[key].items() if turn is not None}
        return turns if len(turns) == len(self._turns[key]) else {}

    def _values(self) -> dict[str, Values]:
        turns = {cell.key: self._timed(cell.key) for cell in self._cells}
        return {key: value for group in self._groups for key, value in group.values(turns)}

    def _replayed(self) -> Stopping:
        """Floats alone are passed over again: a turn that fails or a baseline that drops out changes earlier rounds."""
        measure = self._measure
        criterion = Stopping(
            goal=measure.goal,
            min_rounds=measure.min_rounds,
            max_rounds=measure.max_rounds,
            max_minutes=measure.max_minutes,
        )
        values = {self._names.get(key, key): found for key, found in self._values().items()}
        for number in range(self.rounds):
            criterion.add({name: found[number] for name, found in values.items() if number in found}, self.minutes)
        return criterion


@dataclass(frozen=True, kw_only=True, slots=True)
class _Group:
    """Keys of the cells of one part with equal settings, of its baseline and of its control, if there are any."""

    keys: tuple[str, ...]
    baseline: str | None
    control: str | None

    def values(self, turns: Mapping[str, Turns]) -> Iterator[tuple[str, Values]]:
        base = None if self.baseline is None else turns[self.baseline]
        control = None if self.control is None else turns[self.control]
        for key in self.keys:
            yield key, goal_values(turns[key], base, control, is_baseline=key == self.baseline)


def _groups_of(cells: Sequence[Cell], baselines: Mapping[str, str]) -> tuple[_Group, ...]:
    settings = cell_settings(cells)
    groups: dict[tuple[object, ...], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.part, *settings[cell.key].items()), []).append(cell)
    return tuple(_group(group, baselines[group[0].part]) for group in groups.values())


def _group(cells: Sequence[Cell], baseline: str) -> _Group:
    arms = (cell.key for cell in cells if cell.role == "arm" and cell.label == baseline)
    controls = (cell.key for cell in cells if cell.role == "control")
    return _Group(keys=tuple(cell.key for cell in cells), baseline=next(arms, None), control=next(controls, None))
