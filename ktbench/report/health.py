"""How the machine behaved during a run: control, roofs, core placement, energy, memory, and warnings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

from ktbench.report.text import DASH, number, ratio, unit_of
from ktbench.results import Run
from ktbench.results.row import Row, groups_of, measured, place
from ktbench.results.run import environments_of, machines_of
from ktbench.results.settings import varying
from ktbench.results.speedups import Verdict
from ktbench.results.usage import MAX_DISAGREEMENT, Spread, are_alike, most, peak_spreads, read_spread, unmetered_reason
from ktbench.spec.core_layout import CORE_LAYOUTS
from ktbench.spec.health import MACHINE_CHECKS, TRIAL_CHECKS, Check, Finding, warnings
from ktbench.spec.record import Record
from ktbench.spec.system_metrics import READ_BUFFER_BYTES, PeakMemory


def controls_sentence(rows: Sequence[Row]) -> str:
    """What equal cells differ by: the one control, or the spread of all; empty where nothing was measured."""
    if not measured(rows):
        return ""
    controls = [row for row in rows if row.role == "control"]
    found = [row.speedup for row in controls if row.speedup]
    if not controls:
        return "No control: nothing shows what noise alone does."
    opening = f"Control ({controls[0].baseline} against itself)"
    if not found:
        return f"{opening}: {controls[0].missing['speedup']}."
    moved = any(row.verdict in (Verdict.FASTER, Verdict.SLOWER) for row in controls)
    distrust = "; distrust differences of this size" if moved else ""
    if len(controls) == 1:
        return f"{opening}: {ratio(found[0])}×, {controls[0].verdict}{distrust}."
    low, high = min(interval.low for interval in found), max(interval.high for interval in found)
    count = f"{len(found)} of {len(controls)} measured"
    return f"{opening}: {count}, all intervals within [{low:.3f}, {high:.3f}]×{distrust}."


def roofs_sentence(rows: Sequence[Row]) -> str:
    """Roofs over all turns, and how many turns they could not be held against; empty where none was sampled."""
    records = _records(measured(rows))
    read = read_spread(records)
    if read is None:
        return ""
    found = peak_spreads(records)
    peaks = [f"{isa} {dtype} peak {_spread(s, 1e12)} {unit_of(dtype)}" for (isa, dtype), s in found.items()]
    left_out = sum(row.roof.left_out for row in measured(rows) if row.roof)
    without = (
        f" Shares of roofs leave out {left_out} of {_turns(records)} turns, in which the cores were moved or the read "
        f"roofs before and after differ by more than {MAX_DISAGREEMENT - 1:.0%}."
    )
    roofs = ", ".join([f"read {_spread(read, 1e9)} GB/s", *peaks])
    return f"Roofs sampled next to the turns, median (least to most): {roofs}.{without if left_out else ''}"


def placement_sentence(rows: Sequence[Row]) -> str:
    """Where the cores were in how many turns; empty where it was not measured."""
    rows = measured(rows)
    records = _records(rows)
    times = [roof.ping_pong_ns for record in records for roof in record.roofs if roof.ping_pong_ns is not None]
    counts = Counter(place for row in rows for place in row.core_layouts.values())
    seen = [(place, counts[place]) for place in CORE_LAYOUTS if counts[place]]
    if not seen:
        return ""
    (first, count), *others = seen
    words = [f"{first} in {count} turn{'' if count == 1 else 's'}", *(f"{place} in {n}" for place, n in others)]
    words += [f"unknown in {counts[None]}"] if counts[None] else []
    paired = "; only turns with the cores in the same place are compared" if len(words) > 1 else ""
    hops = " to ".join(dict.fromkeys(f"{ns:.0f}" for ns in (min(times), max(times))))
    return f"Cores: {', '.join(words)} ({hops} ns from core to core){paired}."


def _records(rows: Sequence[Row]) -> list[Record]:
    return [record for row in rows for record in row.records]


def _turns(records: Sequence[Record]) -> int:
    return sum(bool(record.samples_s) for record in records)


def _spread(values: Spread, scale: float) -> str:
    low, mid, high = (number(value / scale, 3) for value in (values.low, values.mid, values.high))
    return f"{mid} ({low} to {high})"


def energy_sentence(rows: Sequence[Row]) -> str:
    """Which meters were added up, of which rows where they differ, and what that holds, or why there is none.

    Empty where no meter could have been read.
    """
    watched = [row for row in measured(rows) if row.timed and any(record.conduct for record in row.records)]
    if not watched:
        return ""
    sums = _sums(watched)
    why = "; ".join(dict.fromkeys(filter(None, (unmetered_reason(row.records) for row in watched))))
    if not sums:
        return f"Energy: {DASH} ({why})."
    lacking = f" Not in it: {why}." if why else ""
    return (
        f"Energy: {sums}, read around the timed steps; of whole chips, neither idle power nor other programs' "
        f"subtracted.{lacking}"
    )


def _sums(rows: Sequence[Row]) -> str:
    """`package-0, gpu-0 together`; with the names of the rows of each where rows were not metered alike."""
    settings = varying([group[0].settings for group in groups_of(rows)])
    found: dict[tuple[str, ...], list[str]] = {}
    for row in rows:
        if row.energy:
            found.setdefault(row.energy.meters, []).append(place(row, settings))
    said = {meters: f"{', '.join(meters)}{' together' if len(meters) > 1 else ''}" for meters in found}
    if len(found) < 2:
        return "".join(said.values())
    each = " and ".join(f"{said[meters]} ({listed(names)})" for meters, names in found.items())
    return f"{each}, not to be compared with each other"


def memory_sentence(rows: Sequence[Row]) -> str:
    """Peaks of the worker processes, by node and device, and how much of them is the harness's own.

    Empty where it was not sampled.
    """
    peaks = [row.peak for row in measured(rows) if row.peak]
    top = most(peaks)
    if top is None:
        return ""
    of = "of the worker during a turn" if top.of_turn else "of the worker since it began"
    low = min(peak.process_bytes for peak in peaks)
    span = in_gib(top.process_bytes) if are_alike(peaks) else f"{in_gib(low)} to {in_gib(top.process_bytes)}"
    parts = parts_text(top)
    return (
        f"Peak memory {of}: {span} GiB{f', by place at most {parts}' if parts else ''}; "
        f"{in_gib(READ_BUFFER_BYTES)} GiB of it is the buffer that the read roof is sampled from."
    )


_GIB = 2**30


def in_gib(nbytes: int) -> str:
    """`5.3`."""
    return f"{nbytes / _GIB:.1f}"


def parts_text(peak: PeakMemory) -> str:
    """`node 0 2.5 GiB, node 1 2.5 GiB, cuda:0 7.1 GiB`."""
    return ", ".join(f"{name} {in_gib(nbytes)} GiB" for name, nbytes in (peak.node_bytes | peak.device_bytes).items())


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
    """Which facts of their health the machines do not report, and why; empty where they report all.

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
    return tuple(line for check in TRIAL_CHECKS if (line := _turn_line(check, watched, name)))


def disturbed_rounds(row: Row) -> dict[str, tuple[int, ...]]:
    """Name of each check that found something -> the rounds in which it did."""
    watched = _watched(row)  # once, not for every check: a run may have ten thousand rows
    found = {check.name: tuple(facts["round"] for facts, _ in _found(check, watched)) for check in TRIAL_CHECKS}
    return {name: rounds for name, rounds in found.items() if rounds}


def listed(names: Sequence[str]) -> str:
    """The first few of many names, each once, and how many more there are."""
    names = list(dict.fromkeys(names))
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return f"{'; '.join(names[:_MOST_NAMES])}{more}"


def _line(warned: Finding) -> str:
    return f"Warning: {warned.text}; {warned.check.harm}."


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
    return [(facts, one.text) for facts in watched for one in warnings([check], facts)]


def _watched(row: Row) -> list[_Facts]:
    """Facts of every monitored turn with samples, with what is usual in turns of this row."""
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
