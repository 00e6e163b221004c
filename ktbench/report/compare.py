"""Rows held against others of their group: speed-up over the baseline, gain of the last feature."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ktbench.core.features import FEATURES
from ktbench.report.row import Gain, Row
from ktbench.stats.intervals import Interval
from ktbench.stats.paired import paired_interval, paired_ratios
from ktbench.stats.verdict import judge


def compared(row: Row, group: Sequence[Row]) -> Row:
    """The row with its comparisons, each judged against what the control of its group shows that noise alone does."""
    base = _baseline(group)
    noise = _noise(base, group) if row.role == "arm" else None
    row = replace(row, gain=_gain(row, group, noise))
    reason = _incomparable(row, base)
    if reason or base is None:
        return replace(row, missing=row.missing | {"speedup": reason})
    speedup = paired_interval(base.round_s, row.round_s)
    if speedup is None:
        return replace(row, missing=row.missing | {"speedup": f"no round has both it and {base.label}"})
    return replace(row, speedup=speedup, verdict=judge(speedup, noise))


def judged_values(row: Row, group: Sequence[Row]) -> dict[int, float]:
    """By round, the values that the precision goal is about.

    Speed-ups over the baseline, which a drift of the whole machine does not touch; for the baseline itself those of its
    control; seconds a step where there is nothing to compare with.
    """
    base, shown = _baseline(group), _control(group) if row.is_baseline else row
    ratios = paired_ratios(base.round_s, shown.round_s) if base and shown else {}
    return ratios or row.round_s


def _baseline(group: Sequence[Row]) -> Row | None:
    return next((row for row in group if row.is_baseline), None)


def _control(group: Sequence[Row]) -> Row | None:
    return next((row for row in group if row.role == "control"), None)


def _noise(base: Row | None, group: Sequence[Row]) -> Interval | None:
    control = _control(group)
    return paired_interval(base.round_s, control.round_s) if base and control else None


def _incomparable(row: Row, base: Row | None) -> str:
    if row.is_baseline:
        return "it is the baseline"
    if base is None:
        return f"no cell {row.baseline} was planned at these settings"
    if not row.timed:
        return row.missing["step_s"]
    return "" if base.timed else f"{base.label} is {base.missing['step_s']}"


def _gain(row: Row, group: Sequence[Row], noise: Interval | None) -> Gain | None:
    """None for a row without features and where the row below it was not planned or not timed."""
    last = next((f for f in reversed(FEATURES) if row.features[f.name] != f.off), None)
    if row.role == "control" or last is None:
        return None
    without = row.features | {last.name: last.off}
    below = next((other for other in group if other.role == "arm" and other.features == without), None)
    ratio = paired_interval(below.round_s, row.round_s) if below else None
    return Gain(over=below.label, ratio=ratio, verdict=judge(ratio, noise)) if below and ratio else None
