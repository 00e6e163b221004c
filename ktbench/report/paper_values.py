"""What a row gives in the unit of a published number."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ktbench.results.intervals import Interval
from ktbench.results.row import Row
from ktbench.results.usage import RoleShares
from ktbench.spec.published import Metric


def value_of(row: Row, metric: Metric, rows: Sequence[Row]) -> float | None:
    """The value of a row in the unit of `metric`; None where it was not timed or has none.

    `% time saved` is over the row among `rows` that defers nothing and is the same otherwise.
    """
    if not row.timed:
        return None
    if metric == "% time saved":
        return _time_saved(row, rows)
    return _VALUES[metric](row) if metric in _VALUES else None


def _tokens_per_s(row: Row) -> float | None:
    return None if row.tokens_per_s is None else row.tokens_per_s.mid


def _milliseconds(row: Row) -> float | None:
    return None if row.step_s is None else row.step_s.mid * 1e3


def _tera_operations(row: Row) -> float | None:
    return None if row.flops_per_s is None else row.flops_per_s / 1e12


def _percent(share: Callable[[RoleShares], Interval]) -> Callable[[Row], float | None]:
    return lambda row: None if row.roles is None else 100 * share(row.roles).mid


def _time_saved(row: Row, rows: Sequence[Row]) -> float | None:
    undeferred = replace(row.spec, engine=replace(row.spec.engine, deferral=0))
    over = next((other.step_s for other in rows if other.spec == undeferred), None)
    return None if over is None or row.step_s is None else 100 * (1 - row.step_s.mid / over.mid)


_VALUES: Mapping[Metric, Callable[[Row], float | None]] = {
    "tokens/s": _tokens_per_s,
    "ms": _milliseconds,
    "TFLOPS": _tera_operations,
    "TOPS": _tera_operations,
    "% host busy": _percent(lambda roles: roles.host_busy),
    "% device busy": _percent(lambda roles: roles.device_busy),
    "% overlap": _percent(lambda roles: roles.overlap),
}
