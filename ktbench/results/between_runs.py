"""Cells of two runs: which trials are comparable, the speed-up they give, and how the machine changed meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import accumulate, pairwise
from statistics import mean, median
from typing import Literal

from ktbench.results.intervals import Interval, by_block, exact
from ktbench.results.row import Row, control_of, groups_of
from ktbench.results.run import Run, each_machine
from ktbench.results.settings import group_by
from ktbench.results.speedups import TrialTimes, comparable, paired_interval, unpaired_interval
from ktbench.results.usage import Limit
from ktbench.spec.core_layout import CoreLayout
from ktbench.spec.errors import RequestError
from ktbench.spec.record import Record, time_of

Method = Literal["paired", "unpaired", "identical", "simulated"]
_Visit = tuple[datetime, datetime, int]
_BlockOf = Callable[[int], int]


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSpeedup:
    """How many times as fast a cell is in the second run, from so many `trials` of both; None with the reason `why`."""

    speedup: Interval | None
    method: Method
    trials: tuple[int, int]
    why: str = ""


def rounds_in_turns(one: Run, other: Run) -> frozenset[int]:
    """Rounds of two runs that were measured next to each other in time, before either continued; none where few were.

    What their records say of when they began decides, so that no option has to state it. A round whose failed trial was
    taken again later is left out, with those that lie in between. At least two, and half of those that both have, are
    needed: one round each is no evidence.
    """
    visits = [_visits(one), _visits(other)]
    both = visits[0].keys() & visits[1].keys()
    ordered = sorted(of_run[number] for number in both for of_run in visits)
    found = frozenset(one[2] for one, other in _alone_in_time(ordered) if one[2] == other[2])
    return found if len(found) > 1 and 2 * len(found) >= len(both) else frozenset()


def _alone_in_time(ordered: Sequence[_Visit]) -> Iterator[tuple[_Visit, _Visit]]:
    """Visits that follow each other while nothing else runs: all before them have ended, none after has begun.

    `ordered` is by when they began.
    """
    ended = [*accumulate((end for _, end, _ in ordered), max)]
    clear = [n == 0 or ended[n - 1] < visit[0] for n, visit in enumerate(ordered)]  # of all that began before
    yield from (pair for n, pair in enumerate(pairwise(ordered)) if all(clear[n : n + 3]))


def _visits(run: Run) -> dict[int, _Visit]:
    """When the first and the last measured trial of each round began, by round."""
    records = run.latest().values()
    timed = (one for one in records if one.samples_s and one.started and one.provenance == "measured")
    begun = group_by((record.round, time_of(record.started)) for record in timed)
    return {number: (min(times), max(times), number) for number, times in begun.items()}


def speedup_between(
    before: Row, after: Row, *, in_turns: Set[int] = frozenset(), different_machines: bool = False
) -> RunSpeedup:
    """The speed-up of a cell that both runs have timed, inside the rounds `in_turns` where there are any.

    Simulated steps are compared as they are, and of one trial with itself nothing is to be estimated. Trials are
    compared only where one machine had the cores in the same place, or where `different_machines` are meant those of
    two.
    """
    if before.step_s and after.step_s and before.simulated and after.simulated:
        return RunSpeedup(speedup=exact(before.step_s.mid / after.step_s.mid), method="simulated", trials=(1, 1))
    if before.records == after.records:
        return RunSpeedup(speedup=exact(1.0), method="identical", trials=(before.rounds, after.rounds))
    there, here = before.trial_times, after.trial_times
    blocks = before.spec.measure.block_of, after.spec.measure.block_of
    if why := _on_other_machines(there, here):
        if not different_machines:
            return RunSpeedup(speedup=None, method="unpaired", trials=(0, 0), why=f"{why}: that is no ratio")
        found = _unpaired(_on_any(there), _on_any(here), blocks)
        return replace(found, why="; ".join(filter(None, [found.why, why])))
    return _paired(there, here, in_turns, blocks[0]) if in_turns else _unpaired(there, here, blocks)


def _on_other_machines(there: TrialTimes, here: TrialTimes) -> str:
    """Which machines timed a cell where none timed it in both runs; empty where one did."""
    mine, theirs = ({trial.machine for trial in trials.values()} for trials in (there, here))
    named = " and ".join(sorted(mine)), " and ".join(sorted(theirs))
    return "" if mine & theirs else f"different machines timed it, {named[0]} in A and {named[1]} in B"


def _on_any(trials: TrialTimes) -> TrialTimes:
    return {number: replace(trial, machine="") for number, trial in trials.items()}


def _paired(there: TrialTimes, here: TrialTimes, in_turns: Set[int], block_of: _BlockOf) -> RunSpeedup:
    one, other = comparable({n: there[n] for n in sorted(in_turns & there.keys())}, here)
    found = paired_interval(one, other, block_of)
    why = "" if found and found.sound else f"{len(one)} rounds compare, an interval of 95% needs 6"
    return RunSpeedup(speedup=found, method="paired", trials=(len(one), len(one)), why=why)


def _unpaired(there: TrialTimes, here: TrialTimes, blocks: tuple[_BlockOf, _BlockOf]) -> RunSpeedup:
    """Of the core layouts that both runs had on a machine, the one with the most trials counts."""
    one, other = _by_core_layout(there, blocks[0]), _by_core_layout(here, blocks[1])
    both = [(one[place], other[place]) for place in one if place in other]
    mine, theirs = max(both, key=lambda sides: min(map(len, sides)), default=([], []))
    found = unpaired_interval(mine, theirs)
    return RunSpeedup(speedup=found, method="unpaired", trials=(len(mine), len(theirs)), why=_too_few(found))


def _too_few(found: Interval | None) -> str:
    if found is None:
        return "in no trial had both runs the cores in the same place"
    return "" if found.sound else "too few trials for an interval of 95%, four in each run are enough"


def _by_core_layout(trials: TrialTimes, block_of: _BlockOf) -> dict[tuple[str, CoreLayout | None], list[float]]:
    """Seconds a step by machine and core layout, in order of rounds, without trials during which the cores moved.

    Of a block of rounds on the same load of the weights the median counts.
    """
    steady = ((number, trial) for number, trial in trials.items() if trial.core_layout != "moved")
    found = group_by(((trial.machine, trial.core_layout), (number, trial.step_s)) for number, trial in steady)
    by_place = {place: by_block(dict(held), block_of).values() for place, held in found.items()}
    return {place: [value for value in values if value is not None] for place, values in by_place.items()}


@dataclass(frozen=True, kw_only=True, slots=True)
class RoofRatio:
    """How many times as high the roof `limit` was next to the trials of the second run: the medians of both."""

    limit: Limit
    ratio: float

    def is_beyond(self, tolerance: float) -> bool:
        """Whether the machine itself changed by more than a comparison tolerates."""
        return not 1 / (1 + tolerance) <= self.ratio <= 1 + tolerance


def roof_ratio(before: Row, after: Row) -> RoofRatio | None:
    """The ratio of the roofs that a cell is nearer to, on machines that both runs timed it on.

    None where one run has none, or one of other arithmetic.
    """
    limit: Limit = after.values.get("nearer_roof", "read")
    mine, theirs = _on_machines_of(after, before), _on_machines_of(before, after)
    there, here = _limits(mine, limit), _limits(theirs, limit)
    if not there or not here or _peaks(mine, limit) != _peaks(theirs, limit):
        return None
    return RoofRatio(limit=limit, ratio=median(here) / median(there))


def _on_machines_of(other: Row, row: Row) -> list[Record]:
    """Records of `row` on machines that the other has, too; a simulated step is the same wherever it was simulated."""
    theirs = {record.env_id for record in other.records}
    return [record for record in row.records if row.simulated or record.env_id in theirs]


def _limits(records: Sequence[Record], limit: Limit) -> list[float]:
    """The roof of each trial: the mean of the samples before and after it."""
    sampled = [record.roofs for record in records if record.samples_s and record.roofs]
    if limit == "read":
        return [mean(roof.read_bytes_per_s for roof in roofs) for roofs in sampled]
    peaks = [[roof.peak_flops for roof in roofs if roof.peak_flops is not None] for roofs in sampled]
    return [mean(found) for found in peaks if found]


def _peaks(records: Sequence[Record], limit: Limit) -> set[tuple[str, str]]:
    """Instruction sets and dtypes of the peaks, which an arithmetic roof is about."""
    roofs = (roof for record in records for roof in record.roofs if limit == "arithmetic")
    return {(roof.peak_isa, roof.peak_dtype) for roof in roofs}


def noise_by_cell(rows: Sequence[Row]) -> dict[str, Interval]:
    """By cell key what the control of its group differs from the baseline by, where it was measured often enough."""
    found: dict[str, Interval] = {}
    for group in groups_of(rows):
        control = control_of(group)
        if control and control.speedup and control.speedup.sound:
            found |= {row.cell: control.speedup for row in group}
    return found


def widest(one: Interval | None, other: Interval | None) -> Interval | None:
    """What noise did in either of two runs: an interval that holds both."""
    if one is None or other is None:
        return one or other
    low, high = min(one.low, other.low), max(one.high, other.high)
    return Interval(low=low, mid=(low * high) ** 0.5, high=high, coverage=min(one.coverage, other.coverage), n=one.n)


def require_one_machine(before: Run, after: Run) -> None:
    """Raises RequestError that names both where what was measured in two runs was measured on different machines."""
    if are_of_different_machines(before, after):
        raise RequestError(
            f"compare: {_named(before)} and {_named(after)} are of different machines; "
            "compare them knowingly with different_machines=true"
        )


def are_of_different_machines(before: Run, after: Run) -> bool:
    """Whether not the same machines measured in both runs; what is simulated is of none."""
    there, here = before.measured_on(), after.measured_on()
    return bool(there and here and there != here)


def _named(run: Run) -> str:
    models = dict.fromkeys(str(facts.get("cpu_model", "not described")) for facts in each_machine(run))
    return f"{run.folder.name} ({', '.join([*models, *sorted(run.measured_on())])})"


def software_changes(before: Run, after: Run) -> Iterator[str]:
    """Packages of another version: `torch 2.12.0, then 2.13.0`."""
    there, here = (dict(each_machine(run)[-1].get("versions") or {}) for run in (before, after))
    for name in sorted(there.keys() | here.keys()):
        if there.get(name) != here.get(name):
            yield f"{name} {there.get(name) or 'not there'}, then {here.get(name) or 'not there'}"
