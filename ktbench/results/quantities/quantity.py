"""A quantity: how it is formed of trials, what it is called, how it is written, why it is missing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from operator import attrgetter
from typing import Any, Generic, TypeVar

from ktbench.results.intervals import Interval, over_rounds
from ktbench.results.quantities.text import DASH, dashed, interval, number
from ktbench.results.quantities.trials import Trial, trials_of
from ktbench.results.row import Row
from ktbench.spec.sweep import FigureKind

T = TypeVar("T")

# The heading of a column in a table of some lines beside a figure, if any; empty where that has no such column.
Heading = Callable[[Sequence[T], FigureKind | None], str]
_values: Callable[[Any], Mapping[str, Any]] = attrgetter("values")  # of a row: nothing else has trials


@dataclass(frozen=True)  # with slots `Quantity[Row](...)` fails
class Quantity(Generic[T]):
    """What is known of a line, such as a cell, under a `name`, which is its column in files: SI units, shares from 0
    to 1.

    A value is formed of the values that the trials of a row have (`trial`, None where a trial has none): their median
    over rounds with its interval, or what `reduce` makes of them; else of the line (`derive`), by default its attribute
    of that name. `is_interval` marks values with ends that are derived,
    `is_estimate` those with a standard error as well. Only rows that were timed have values of
    trials, but for what they `always` have. Where `has` is False a line lacks the column.

    A table shows it below its `heading`: as `write` says of a line or `show` of a value, else an interval with its
    ends, or the value alone to `digits` digits, `scale` times as large. Without a heading it is in files alone.
    `is_key`, `is_movable`, `is_text` and `blanks` are as in a table's column. `why` says why a value is missing; it is
    empty where nothing is.

    CSV and frames have it where `csv`; a mapping has a column for each key, whose name takes the place of the braces
    in `csv_keys`. `json` is its place in the JSON of a row, by default its name, also below what ends in a dot; None
    where it is not there.
    """

    name: str
    heading: str | Heading[T] = ""
    trial: Callable[[Trial], Any] | None = None
    _: KW_ONLY
    reduce: Callable[[Sequence[Any]], Any] | None = None
    derive: Callable[[T], Any] | None = None
    is_interval: bool = False
    is_estimate: bool = False
    always: bool = False
    has: Callable[[T], object] = lambda _: True
    scale: float = 1.0
    digits: int | None = None
    show: Callable[[Any], str] | None = None
    write: Callable[[T], str] | None = None
    is_key: bool = False
    is_movable: bool = False
    is_text: bool = False
    blanks: tuple[str, ...] = (DASH,)
    why: Callable[[T], str] | None = None
    csv: bool = True
    csv_keys: str = ""
    json: str | None = ""

    @property
    def has_ends(self) -> bool:
        """Whether it is an interval, whose ends have columns of their own."""
        return self.is_interval or (self.trial is not None and self.reduce is None)

    @property
    def place(self) -> tuple[str, ...]:
        """Its place in JSON, from the outside in; empty where JSON does not have it."""
        if self.json is None:
            return ()
        return tuple(
            (f"{self.json}{self.name}" if self.json == "" or self.json.endswith(".") else self.json).split(".")
        )

    def value(self, line: T) -> Any:
        """The value of a line; None where it has none."""
        if self.trial is not None:
            return _values(line).get(self.name)
        return getattr(line, self.name) if self.derive is None else self.derive(line)

    def text(self, line: T) -> str:
        """The value as tables show it; a dash where there is none."""
        return self.write(line) if self.write else dashed(self.value(line), self.show or self._written)

    def _written(self, value: Any) -> str:
        if isinstance(value, Interval):
            return interval(value, self.scale) if self.digits is None else number(value.mid * self.scale, self.digits)
        return number(value * self.scale, self.digits) if self.digits else str(value)

    def headed(self, lines: Sequence[T], figure: FigureKind | None = None) -> str:
        """Its heading in a table of lines beside a figure; empty where that has no such column."""
        return self.heading if isinstance(self.heading, str) else self.heading(lines, figure)


def values_of(row: Row, quantities: Iterable[Quantity[Row]]) -> dict[str, Any]:
    """What the trials of a row come to, by quantity; what has no value is left out."""
    trials, is_timed = trials_of(row.records, row.spec), row.outcome is not None and row.outcome.timed
    found: dict[str, Any] = {}
    for one in quantities:
        if one.trial is not None and (is_timed or one.always) and one.has(row):
            values = {t.record.round: value for t in trials if (value := one.trial(t)) is not None}
            if values:
                found[one.name] = _reduced(one, values, row)
    return found


def _reduced(one: Quantity[Row], values: Mapping[int, Any], row: Row) -> Any:
    return one.reduce([*values.values()]) if one.reduce else over_rounds(values, row.records, row.spec.measure)
