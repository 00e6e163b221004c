"""When a sweep has measured enough: add a round, ask whether it is finished, ask why."""

from __future__ import annotations

from collections.abc import Mapping

from ktbench.results.intervals import Interval, median_interval


class Stopping:
    """Ends at the precision goal or at a ceiling. Time is told to it; it holds no clock.

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

        None: the cell ran, but what it gave cannot be compared and counts for nothing. A cell that is missing has
        dropped out and is not waited for.
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
            return f"every interval is within ±{self.goal:.1%}, {self.min_rounds} rounds were asked for"
        widths = ", ".join(f"{name} {_width(interval)}" for name, interval in still.items())
        return f"{len(still)} of {len(self._running)} intervals wider than ±{self.goal:.1%} ({widths})"

    def _rounds_done(self) -> str:
        return f"{self.rounds} round{'' if self.rounds == 1 else 's'}"


def _width(interval: Interval | None) -> str:
    if interval is None:
        return "without a value, 6 needed"
    return f"±{interval.half_width:.1%}" if interval.sound else f"of {interval.n} values, 6 needed"
