"""What happened on the machine during the timed steps of a cell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from statistics import median

from ktbench.results.row import Row
from ktbench.results.run import Facts
from ktbench.spec.health import TRIAL_CHECKS, Check, warnings


def disturbed_rounds(row: Row) -> dict[str, tuple[int, ...]]:
    """Name of each check that found something -> the rounds in which it did."""
    watched = watched_trials(row)  # once, not for every check: a run may have ten thousand rows
    found = {check.name: tuple(facts["round"] for facts, _ in findings(check, watched)) for check in TRIAL_CHECKS}
    return {name: rounds for name, rounds in found.items() if rounds}


def findings(check: Check, watched: Sequence[Facts]) -> list[tuple[Facts, str]]:
    """Facts and finding of each trial in which the check found something."""
    return [(facts, one.text) for facts in watched for one in warnings([check], facts)]


def watched_trials(row: Row) -> list[Facts]:
    """Facts of every monitored trial with samples, with what is usual in trials of this row."""
    seen = [
        (record.round, record.system_metrics.disturbance)
        for record in row.records
        if record.system_metrics and record.samples_s
    ]
    usual = {
        f"usual_{clock}": _usual([getattr(one, clock) for _, one in seen]) for clock in ("clock_hz", "gpu_clock_hz")
    }
    return [asdict(one) | usual | {"round": round_number} for round_number, one in seen]


def _usual(clocks: Sequence[float | None]) -> float | None:
    known = [clock for clock in clocks if clock is not None]
    return median(known) if known else None


def rounds_disturbed(row: Row) -> set[int]:
    """Rounds in which any check found something."""
    return {number for rounds in disturbed_rounds(row).values() for number in rounds}
