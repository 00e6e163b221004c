"""What spoiled the measurements of a run, in a line each: settings of the machine, its roofs, what befell turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

from ktbench.report.text import number, unit_of
from ktbench.results import Run
from ktbench.results.row import Row, measured
from ktbench.results.run import environments_of, machines_of
from ktbench.spec.health import MACHINE_CHECKS, warnings
from ktbench.spec.health.check import Check, Warned
from ktbench.spec.health.turn import TURN_CHECKS
from ktbench.spec.record import Record

# A roof that moved by more during the run was another machine's, as far as shares of it go.
ROOF_MOVED = 0.15
_MOST_NAMES = 8
# Of one kind of roof: round and value of every sample.
_Samples = list[tuple[int, float]]
_Facts = dict[str, Any]
_Watched = tuple[Row, list[_Facts]]


def machine_warnings(run: Run) -> tuple[str, ...]:
    """What was wrong with a machine whenever a sitting began, each thing once, with what it does."""
    every = [environment.facts for environment in environments_of(run)]
    found = {warned.check.name: warned for facts in every for warned in warnings(MACHINE_CHECKS, facts)}
    return tuple(_line(warned) for warned in found.values())


def unreadable_sentence(run: Run) -> str:
    """What the machines do not say of their health, and why; empty where they say all, or nobody asked.

    Where they do not all lack the same each is named by its id.
    """
    machines = machines_of(run)
    holders: dict[str, list[str]] = {}
    for env_id, facts in machines.items():
        if lacking := _unreadable(facts.get("missing") or {}):
            holders.setdefault(lacking, []).append(env_id)
    if [len(ids) for ids in holders.values()] == [len(machines)]:
        return f"Not to be read here: {next(iter(holders))}."
    return " ".join(f"Not to be read on {' and '.join(ids)}: {lacking}." for lacking, ids in holders.items())


def _unreadable(missing: Mapping[str, str]) -> str:
    """Names by the reason that they share: `governor, clock (no cpufreq)`."""
    names: dict[str, list[str]] = {}
    for name, reason in missing.items():
        names.setdefault(reason, []).append(name)
    return "; ".join(f"{', '.join(found)} ({reason})" for reason, found in names.items())


def roof_warnings(rows: Sequence[Row]) -> tuple[str, ...]:
    """Roofs that were further from their median in some rounds than shares of them can bear."""
    found = []
    for (name, unit, scale), samples in sorted(_roofs(measured(rows)).items()):
        usual = median(value for _, value in samples)
        off = {r: mid for r, mid in _by_round(samples).items() if abs(mid / usual - 1) > ROOF_MOVED}
        if off:
            low, high = (number(value / scale, 3) for value in (min(off.values()), max(off.values())))
            span = low if low == high else f"{low} to {high}"
            found.append(
                f"Warning: {name} was {span} {unit} in {_rounds(tuple(off))}, more than {ROOF_MOVED:.0%} off its "
                f"median of {number(usual / scale, 3)}: what was measured then met another machine."
            )
    return tuple(found)


def turn_warnings(rows: Sequence[Row], name: Callable[[Row], str]) -> tuple[str, ...]:
    """What happened to timed steps: for each check that found something the cells affected, and the worst of it."""
    watched = [(row, facts) for row in measured(rows) if (facts := _watched(row))]
    return tuple(line for check in TURN_CHECKS if (line := _turn_line(check, watched, name)))


def disturbed_rounds(row: Row) -> dict[str, tuple[int, ...]]:
    """Name of each check that found something -> the rounds in which it did."""
    watched = _watched(row)  # once, not for every check: a run may have ten thousand rows
    found = {check.name: tuple(facts["round"] for facts, _ in _found(check, watched)) for check in TURN_CHECKS}
    return {name: rounds for name, rounds in found.items() if rounds}


def listed(names: Sequence[str]) -> str:
    """The first few of many names, each once, and how many more there are."""
    names = list(dict.fromkeys(names))
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return f"{'; '.join(names[:_MOST_NAMES])}{more}"


def _line(warned: Warned) -> str:
    return f"Warning: {warned.said}; {warned.check.harm}."


def _turn_line(check: Check, watched: Sequence[_Watched], name: Callable[[Row], str]) -> str:
    turns: dict[str, list[_Facts]] = {}
    for row, facts in watched:  # several rows where a name stands for an arm at several points
        turns.setdefault(name(row), []).extend(facts)
    affected = {who: found for who, facts in turns.items() if (found := _found(check, facts))}
    if not affected:
        return ""
    cells = [f"{who} in {len(found)} of {len(turns[who])} turns" for who, found in affected.items()]
    turn, said = max((pair for found in affected.values() for pair in found), key=lambda pair: _rate(check, pair[0]))
    worst = f"in {number(turn['seconds'], 2)} s of steps, {said}"
    return f"{listed(cells)} — {check.name}: at worst, {worst}; {check.harm}"


def _found(check: Check, watched: Sequence[_Facts]) -> list[tuple[_Facts, str]]:
    """Facts and finding of each turn in which the check found something."""
    return [(facts, one.said) for facts in watched for one in warnings([check], facts)]


def _watched(row: Row) -> list[_Facts]:
    """Facts of every turn with samples that somebody watched, with what is usual in turns of this row."""
    seen = [(record.round, record.conduct.disturbance) for record in row.records if record.conduct and record.samples_s]
    clocks = [one.clock_hz for _, one in seen if one.clock_hz is not None]
    usual = median(clocks) if clocks else None
    return [asdict(one) | {"round": round_number, "usual_clock_hz": usual} for round_number, one in seen]


def _rate(check: Check, facts: _Facts) -> float:
    """How much there was of what the check is about: as a share of what is usual, or of the cpus' time, or a second."""
    name = check.needs[0]
    amount, usual = float(facts[name]), float(facts.get(f"usual_{name}") or 0)
    if usual:
        return abs(amount / usual - 1)
    return amount / float(facts["seconds"]) / (int(facts["cpus"]) if name.endswith("_s") else 1)


def _roofs(rows: Sequence[Row]) -> dict[tuple[str, str, float], _Samples]:
    """Samples by kind of roof: its name, unit and scale. Teams of other sizes have other roofs."""
    found: dict[tuple[str, str, float], _Samples] = {}
    several = len({row.spec.engine.threads for row in rows}) > 1
    for row in rows:
        team = f" of {row.spec.engine.threads or 'all'} threads" if several else ""
        for kind, sample in (pair for record in row.records for pair in _kinds(record, team)):
            found.setdefault(kind, []).append(sample)
    return found


def _kinds(record: Record, team: str) -> Iterator[tuple[tuple[str, str, float], tuple[int, float]]]:
    for roof in record.roofs:
        yield (f"read bandwidth{team}", "GB/s", 1e9), (record.round, roof.read_bytes_per_s)
        if roof.peak_flops is not None:
            name = f"{roof.peak_isa} {roof.peak_dtype} peak{team}"
            yield (name, unit_of(roof.peak_dtype), 1e12), (record.round, roof.peak_flops)


def _by_round(samples: _Samples) -> dict[int, float]:
    values: dict[int, list[float]] = {}
    for round_number, value in samples:
        values.setdefault(round_number, []).append(value)
    return {round_number: median(values[round_number]) for round_number in sorted(values)}


def _rounds(numbers: Sequence[int]) -> str:
    return f"round{'' if len(numbers) == 1 else 's'} {', '.join(map(str, numbers))}"
