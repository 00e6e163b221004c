"""Rows held against others of their group: speed-up over the baseline, gain of the last feature.

Only turns of one round that had the cores in the same place are held against each other; simulated steps as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ktbench.report.row import Gain, Row
from ktbench.results.intervals import Interval, exact
from ktbench.results.speedups import judge, paired_interval, paired_ratios
from ktbench.spec.features import FEATURES


def compared(row: Row, group: Sequence[Row]) -> Row:
    """The row with its comparisons, each judged against what the control of its group shows that noise alone does."""
    base = _baseline(group)
    noise = _noise(base, group) if row.role == "arm" else None
    row = _with_gain(row, group, noise)
    reason = _incomparable(row, base)
    if reason or base is None:
        return replace(row, missing=row.missing | {"speedup": reason})
    speedup = _ratio(base, row)
    if speedup is None:
        return replace(row, missing=row.missing | {"speedup": _unpaired(row, base)})
    return replace(row, speedup=speedup, verdict=judge(speedup, noise))


def judged_values(row: Row, group: Sequence[Row]) -> dict[int, float | None]:
    """By round, the values that the precision goal is about.

    Speed-ups over the baseline, which a drift of the whole machine does not touch; for the baseline itself those of its
    control; seconds a step where there is nothing to compare with. None in a round in which both were measured, but
    with the cores in different places.
    """
    base, shown = _baseline(group), _control(group) if row.is_baseline else row
    both = base.round_s.keys() & shown.round_s.keys() if base and shown else set()
    if not (base and shown and both):
        return dict(row.round_s)
    ratios = paired_ratios(*_alike(base, shown))
    return {number: ratios.get(number) for number in sorted(both)}


def _ratio(one: Row, other: Row) -> Interval | None:
    """How many times as fast as `one` the `other` is; None where no round compares them."""
    if one.step_s and other.step_s and one.simulated and other.simulated:
        return exact(one.step_s.mid / other.step_s.mid)
    return paired_interval(*_alike(one, other))


def _alike(one: Row, other: Row) -> tuple[dict[int, float], dict[int, float]]:
    """Seconds of both in the rounds in which one machine had their cores in the same place, where they stayed."""
    there, here = one.placements, other.placements
    machine, its = _machines(one), _machines(other)
    one_s, other_s = one.round_s, other.round_s
    both = one_s.keys() & other_s.keys()
    rounds = [n for n in both if there[n] == here[n] != "moved" and machine[n] == its[n]]
    return {n: one_s[n] for n in rounds}, {n: other_s[n] for n in rounds}


def _machines(row: Row) -> dict[int, str]:
    return {record.round: record.env_id for record in row.records}


def _unpaired(row: Row, base: Row) -> str:
    if row.round_s.keys() & base.round_s.keys():
        return f"in no round had it and {base.label} the cores in the same place"
    return f"no round has both it and {base.label}"


def _baseline(group: Sequence[Row]) -> Row | None:
    return next((row for row in group if row.is_baseline), None)


def _control(group: Sequence[Row]) -> Row | None:
    return next((row for row in group if row.role == "control"), None)


def _noise(base: Row | None, group: Sequence[Row]) -> Interval | None:
    control = _control(group)
    return _ratio(base, control) if base and control else None


def _incomparable(row: Row, base: Row | None) -> str:
    if row.is_baseline:
        return "it is the baseline"
    if base is None:
        return f"no cell {row.baseline} was planned at these settings"
    if not row.timed:
        return row.missing["step_s"]
    return "" if base.timed else f"{base.label} is {base.missing['step_s']}"


def _with_gain(row: Row, group: Sequence[Row], noise: Interval | None) -> Row:
    below = _below(row, group)
    if below is None or not (below.timed and row.timed):
        return row
    ratio = _ratio(below, row)
    if ratio is None:
        return replace(row, missing=row.missing | {"gain": _unpaired(row, below)})
    return replace(row, gain=Gain(over=below.label, ratio=ratio, verdict=judge(ratio, noise)))


def _below(row: Row, group: Sequence[Row]) -> Row | None:
    """The arm of our own and of equal precision that lacks only the last feature; None where none was planned."""
    last = next((f for f in reversed(FEATURES) if row.features[f.name] != f.off), None)
    if row.role == "control" or last is None:
        return None
    without = row.features | {last.name: last.off}
    arms = [other for other in group if other.role == "arm" and _is_alike(other, row)]
    return next((other for other in arms if other.features == without), None)


def _is_alike(one: Row, other: Row) -> bool:
    return (one.spec.system, one.spec.precision) == (other.spec.system, other.spec.precision)
