"""Which turns of two runs are held against each other, and the ratio that they give."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import accumulate, pairwise
from typing import Literal

from ktbench.results import Run
from ktbench.results.intervals import Interval, exact
from ktbench.results.row import Row
from ktbench.results.speedups import paired_interval, unpaired_interval
from ktbench.spec.placement import Placement

Method = Literal["paired", "unpaired", "identical", "simulated"]
_Visit = tuple[datetime, datetime, int]
_Place = tuple[str, Placement | None]
_Places = dict[int, _Place]


@dataclass(frozen=True, kw_only=True, slots=True)
class Held:
    """How many times as fast a cell is in the second run, from so many `turns` of both; None with the reason `why`."""

    speedup: Interval | None
    method: Method
    turns: tuple[int, int]
    why: str = ""


def rounds_in_turns(one: Run, other: Run) -> frozenset[int]:
    """Rounds of two runs that were measured next to each other in time, before either went on; none where few were.

    What their records say of when they began decides, so that nobody has to claim it. A round whose failed turn was
    taken again later is left out, with those that lie in between. At least two, and half of those that both have, are
    needed: of one round each it cannot be told.
    """
    visits = [_visits(one), _visits(other)]
    both = visits[0].keys() & visits[1].keys()
    ordered = sorted(of_run[number] for number in both for of_run in visits)
    found = frozenset(one[2] for one, other in _alone_in_time(ordered) if one[2] == other[2])
    return found if len(found) > 1 and 2 * len(found) >= len(both) else frozenset()


def _alone_in_time(ordered: Sequence[_Visit]) -> Iterator[tuple[_Visit, _Visit]]:
    """Visits that follow each other while nothing else goes on: all before them have ended, none after has begun.

    `ordered` is by when they began.
    """
    ended = [*accumulate((end for _, end, _ in ordered), max)]
    clear = [n == 0 or ended[n - 1] < visit[0] for n, visit in enumerate(ordered)]  # of all that began before
    yield from (pair for n, pair in enumerate(pairwise(ordered)) if all(clear[n : n + 3]))


def _visits(run: Run) -> dict[int, _Visit]:
    """When the first and the last measured turn of each round began, by round."""
    begun: dict[int, list[datetime]] = {}
    for record in run.latest().values():
        if record.samples_s and record.provenance == "measured":
            begun.setdefault(record.round, []).append(datetime.fromisoformat(record.started))
    return {number: (min(times), max(times), number) for number, times in begun.items()}


def held(before: Row, after: Row, *, in_turns: Set[int] = frozenset(), different_machines: bool = False) -> Held:
    """The speed-up of a cell that both runs have timed, inside the rounds `in_turns` where there are any.

    Simulated steps are compared as they are, and of one turn with itself nothing is to be estimated. Turns are compared
    only where one machine had the cores in the same place, or where `different_machines` are meant those of two.
    """
    if before.step_s and after.step_s and before.simulated and after.simulated:
        return Held(speedup=exact(before.step_s.mid / after.step_s.mid), method="simulated", turns=(1, 1))
    if before.records == after.records:
        return Held(speedup=exact(1.0), method="identical", turns=(before.rounds, after.rounds))
    there, here = _places(before), _places(after)
    if why := _on_other_machines(there, here):
        if not different_machines:
            return Held(speedup=None, method="unpaired", turns=(0, 0), why=f"{why}: that is no ratio")
        found = _unpaired(before, after, _on_any(there), _on_any(here))
        return replace(found, why="; ".join(filter(None, [found.why, why])))
    return _paired(before, after, there, here, in_turns) if in_turns else _unpaired(before, after, there, here)


def _on_other_machines(there: _Places, here: _Places) -> str:
    """Which machines timed a cell where none timed it in both runs; empty where one did."""
    mine, theirs = ({machine for machine, _ in places.values()} for places in (there, here))
    named = " and ".join(sorted(mine)), " and ".join(sorted(theirs))
    return "" if mine & theirs else f"different machines timed it, {named[0]} in A and {named[1]} in B"


def _on_any(places: _Places) -> _Places:
    return {number: ("", place) for number, (_, place) in places.items()}


def _paired(before: Row, after: Row, there: _Places, here: _Places, in_turns: Set[int]) -> Held:
    rounds = [n for n in sorted(in_turns & there.keys()) if there[n] == here.get(n) and there[n][1] != "moved"]
    found = paired_interval({n: before.round_s[n] for n in rounds}, {n: after.round_s[n] for n in rounds})
    why = "" if found and found.sound else f"{len(rounds)} rounds compare, an interval of 95% needs 6"
    return Held(speedup=found, method="paired", turns=(len(rounds), len(rounds)), why=why)


def _unpaired(before: Row, after: Row, there: _Places, here: _Places) -> Held:
    """Of the places that both runs had the cores in, the one with the most turns counts."""
    one, other = _by_place(before, there), _by_place(after, here)
    both = [(one[place], other[place]) for place in one if place in other]
    mine, theirs = max(both, key=lambda sides: min(map(len, sides)), default=([], []))
    found = unpaired_interval(mine, theirs)
    return Held(speedup=found, method="unpaired", turns=(len(mine), len(theirs)), why=_too_few(found))


def _too_few(found: Interval | None) -> str:
    if found is None:
        return "in no turn had both runs the cores in the same place"
    return "" if found.sound else "too few turns for an interval of 95%, four in each run are enough"


def _by_place(row: Row, places: _Places) -> dict[_Place, list[float]]:
    """Seconds a step of the turns by where the cores were, in order of rounds; those that moved count for nothing."""
    found: dict[_Place, list[float]] = {}
    for number, place in places.items():
        if place[1] != "moved":
            found.setdefault(place, []).append(row.round_s[number])
    return found


def _places(row: Row) -> _Places:
    """By round that has samples, which machine it was and where on it the cores were."""
    machines = {record.round: record.env_id for record in row.records}
    return {number: (machines[number], place) for number, place in row.placements.items()}
