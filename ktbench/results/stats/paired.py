"""Speed-ups formed inside a round, so that whatever slowed the machine in that round slows both sides."""

from __future__ import annotations

from collections.abc import Mapping

from ktbench.results.stats.intervals import Interval, median_interval


def paired_ratios(baseline: Mapping[int, float], cell: Mapping[int, float]) -> dict[int, float]:
    """Speed-up, baseline / cell, by round, for the rounds that both have; times in any one unit, above 0."""
    return {number: baseline[number] / cell[number] for number in sorted(baseline.keys() & cell.keys())}


def paired_interval(baseline: Mapping[int, float], cell: Mapping[int, float]) -> Interval | None:
    """Interval of the speed-up of `cell` over `baseline`; None where no round has both."""
    ratios = paired_ratios(baseline, cell)
    return median_interval(list(ratios.values())) if ratios else None
