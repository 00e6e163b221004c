"""Which turns of two runs are held against each other, and the ratio that they give."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Literal

from ktbench.core.placement import Placement
from ktbench.report.exact import exact
from ktbench.report.row import Row
from ktbench.stats.intervals import Interval
from ktbench.stats.paired import paired_interval
from ktbench.stats.unpaired import unpaired_interval
from ktbench.store import Run

Method = Literal["paired", "unpaired", "identical", "simulated"]
_Visit = tuple[datetime, datetime, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Held:
    """How many times as fast a cell is in the second run, from so many `turns` of both; None with the reason `why`."""

    speedup: Interval | None
    method: Method
    turns: tuple[int, int]
    why: str = ""


def recorded_in_turns(one: Run, other: Run) -> bool:
    """Whether the same rounds of two runs were measured next to each other in time, before either went on.

    What their records say of when they began decides, so that nobody has to claim it. At least two rounds are needed:
    of one round each it cannot be told.
    """
    visits = [_visits(one), _visits(other)]
    both = sorted(visits[0].keys() & visits[1].keys())
    ordered = sorted(of_run[number] for number in both for of_run in visits)
    apart = all(before[1] < after[0] for before, after in pairwise(ordered))
    return len(both) > 1 and apart and [number for *_, number in ordered] == [n for n in both for _ in visits]


def _visits(run: Run) -> dict[int, _Visit]:
    """When the first and the last measured turn of each round began, by round."""
    begun: dict[int, list[datetime]] = {}
    for record in run.latest().values():
        if record.samples_s and record.provenance == "measured":
            begun.setdefault(record.round, []).append(datetime.fromisoformat(record.started))
    return {number: (min(times), max(times), number) for number, times in begun.items()}


def held(before: Row, after: Row, *, in_turns: bool) -> Held:
    """The speed-up of a cell that both runs have timed.

    Simulated steps are compared as they are, and of one turn with itself nothing is to be estimated. Turns are compared
    only where the cores were in the same place.
    """
    if before.step_s and after.step_s and before.simulated and after.simulated:
        return Held(speedup=exact(before.step_s.mid / after.step_s.mid), method="simulated", turns=(1, 1))
    if before.records == after.records:
        return Held(speedup=exact(1.0), method="identical", turns=(before.rounds, after.rounds))
    return _paired(before, after) if in_turns else _unpaired(before, after)


def _paired(before: Row, after: Row) -> Held:
    both = before.round_s.keys() & after.round_s.keys()
    rounds = [n for n in sorted(both) if before.placements[n] == after.placements[n] != "moved"]
    found = paired_interval({n: before.round_s[n] for n in rounds}, {n: after.round_s[n] for n in rounds})
    why = "" if found and found.sound else f"{len(rounds)} rounds compare, an interval of 95% needs 6"
    return Held(speedup=found, method="paired", turns=(len(rounds), len(rounds)), why=why)


def _unpaired(before: Row, after: Row) -> Held:
    """Of the places that both runs had the cores in, the one with the most turns counts."""
    there, here = _by_place(before), _by_place(after)
    both = [(there[place], here[place]) for place in there if place in here]
    mine, theirs = max(both, key=lambda sides: min(map(len, sides)), default=([], []))
    found = unpaired_interval(mine, theirs)
    return Held(speedup=found, method="unpaired", turns=(len(mine), len(theirs)), why=_too_few(found))


def _too_few(found: Interval | None) -> str:
    if found is None:
        return "in no turn had both runs the cores in the same place"
    return "" if found.sound else "too few turns for an interval of 95%, four in each run are enough"


def _by_place(row: Row) -> dict[Placement | None, list[float]]:
    """Seconds a step of the turns by where the cores were, in order of rounds; those that moved count for nothing."""
    found: dict[Placement | None, list[float]] = {}
    for number, seconds in row.round_s.items():
        if (place := row.placements[number]) != "moved":
            found.setdefault(place, []).append(seconds)
    return found
