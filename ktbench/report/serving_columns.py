"""The columns of a table of cells that served requests: rates, latencies, goodput and queue."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ktbench.report.table import Column
from ktbench.results.intervals import Interval
from ktbench.results.quantities.text import DASH, dashed, interval, number
from ktbench.results.row import Row
from ktbench.results.serving.latency import SHARES, Percentiles, Serving

RowColumn = Column[Row]
_KEY_SHARES = ("p50", "p99")  # of those that a table in a paper has room for


def serving_columns(time: Callable[[Row], str], compared: Sequence[RowColumn], of: str) -> tuple[RowColumn, ...]:
    """Rates first, as the comparison is about them, then what a user waits for; ` of 4 of 48 layers` is what is of."""
    return (
        Column("time (ms/output token)", time, key=True),
        Column(f"output{of} (tokens/s)", _served(lambda one: interval(one.output_per_s)), key=True),
        *compared,
        Column("prompts and output (tokens/s)", _served(lambda one: _middle(one.total_per_s))),
        Column("a user's (tokens/s)", _served(lambda one: _middle(one.user_per_s)), key=True),
        *_percentiles("first token", "s", 1, lambda one: one.ttft_s),
        *_percentiles("between tokens", "ms", 1e3, lambda one: one.itl_s),
        *_percentiles("whole answer", "s", 1, lambda one: one.end_to_end_s),
        Column("goodput (requests/s)", _served(lambda one: _middle(one.goodput)), key=True),
        Column("within the SLO (%)", _served(lambda one: _middle(one.kept, 100))),
        Column("waiting, mean (requests)", _served(lambda one: _middle(one.waiting)), blanks=(DASH, "0")),
        Column("waiting, most (requests)", _served(lambda one: _middle(one.most_waiting)), blanks=(DASH, "0")),
        Column("prompt from the cache (%)", _served(lambda one: _middle(one.cached, 100)), blanks=(DASH, "0")),
        Column("scheduler and cache (% of a step)", _served(lambda one: _middle(one.scheduler, 100))),
    )


def _percentiles(
    what: str, unit: str, scale: float, of: Callable[[Serving], Percentiles | None]
) -> Iterator[RowColumn]:
    for name in SHARES:
        yield Column(f"{what} {name} ({unit})", _served(_at(name, scale, of)), key=name in _KEY_SHARES)


def _at(name: str, scale: float, of: Callable[[Serving], Percentiles | None]) -> Callable[[Serving], str]:
    return lambda one: dashed(of(one), lambda found: _middle(getattr(found, name), scale))


def _served(write: Callable[[Serving], str]) -> Callable[[Row], str]:
    return lambda row: dashed(row.serving, write)


def _middle(value: Interval | None, scale: float = 1.0) -> str:
    """Three digits without the interval, which would take the room of other columns; files have it."""
    return dashed(value, lambda value: number(value.mid * scale, 3))
