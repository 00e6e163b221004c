"""How the machine behaved during a run: control, roofs, core placement, energy, memory, and warnings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from statistics import median

from ktbench.report.template import phrase
from ktbench.report.text import extremes, names_by
from ktbench.results import Run
from ktbench.results.quantities.disturbances import findings, watched_trials
from ktbench.results.quantities.text import in_gib, number, unit_of
from ktbench.results.quantities.trials import MAX_DISAGREEMENT
from ktbench.results.row import Row, control_of, groups_of, measured, place
from ktbench.results.run import Facts, environments_of, machines_of
from ktbench.results.settings import group_by, varying
from ktbench.results.usage import are_alike, most, peak_spreads, read_spread, unmetered_reason
from ktbench.spec.core_layout import CORE_LAYOUTS, core_layout_at
from ktbench.spec.health import MACHINE_CHECKS, TRIAL_CHECKS, Check, warnings
from ktbench.spec.record import Record
from ktbench.spec.system_metrics import READ_BUFFER_BYTES, PeakMemory

_MOST_OF_A_ROOF = 1.1  # roofs next to the same steps differ by some percent
_phrase = partial(phrase, "health.txt.j2")


def controls_sentence(rows: Sequence[Row]) -> str:
    """What equal cells differ by: the one control, or the spread of all; empty where nothing was measured."""
    if not measured(rows):
        return ""
    return _phrase("control", controls=[control for group in groups_of(rows) if (control := control_of(group))])


def roofs_sentence(rows: Sequence[Row]) -> str:
    """Roofs over all trials, and how many trials they could not be compared with; empty where none was sampled."""
    records = _records(measured(rows))
    read = read_spread(records)
    if read is None:
        return ""
    return _phrase(
        "roofs",
        read=read,
        peaks=peak_spreads(records),
        left_out=sum(row.values.get("roofs_left_out", 0) for row in measured(rows)),
        trials=sum(bool(record.samples_s) for record in records),
        tolerance=MAX_DISAGREEMENT - 1,
    )


def placement_sentence(rows: Sequence[Row]) -> str:
    """Where the cores were in how many trials; empty where it was not measured."""
    rows = measured(rows)
    times = [ns for one in _records(rows) for roof in one.roofs if (ns := roof.ping_pong_ns) and core_layout_at(ns)]
    found = Counter(str(place or "unknown") for row in rows for place in row.core_layouts.values())
    counts = {place: found[place] for place in (*CORE_LAYOUTS, "unknown") if found[place]}
    if not counts.keys() - {"unknown"}:
        return ""
    return _phrase("placement", counts=counts, hops_ns=dict.fromkeys(f"{ns:.0f}" for ns in extremes(times)))


def _records(rows: Sequence[Row]) -> list[Record]:
    return [record for row in rows for record in row.records]


def energy_sentence(rows: Sequence[Row]) -> str:
    """Which meters were added up, of which rows where they differ, and what that holds, or why there is none.

    Empty where no meter could have been read.
    """
    watched = [row for row in measured(rows) if row.timed and any(record.system_metrics for record in row.records)]
    if not watched:
        return ""
    settings = varying([group[0].settings for group in groups_of(watched)])
    sums = names_by((place(row, settings), meters) for row in watched if (meters := row.values.get("meters")))
    why = "; ".join(dict.fromkeys(filter(None, (unmetered_reason(row.records) for row in watched))))
    return _phrase("energy", sums={meters: listed(names) for meters, names in sums.items()}, why=why)


def memory_sentence(rows: Sequence[Row]) -> str:
    """Peaks of the worker processes, by node and device, and how much of them is the harness's own.

    Empty where it was not sampled.
    """
    peaks = [row.peak for row in measured(rows) if row.peak]
    top = most(peaks)
    if top is None:
        return ""
    low = None if are_alike(peaks) else min(peak.process_bytes for peak in peaks)
    return _phrase("memory", top=top, low=low, parts=parts_text(top), buffer=READ_BUFFER_BYTES)


def parts_text(peak: PeakMemory) -> str:
    """`node 0 2.5 GiB, node 1 2.5 GiB, cuda:0 7.1 GiB`."""
    return ", ".join(f"{name} {in_gib(nbytes)} GiB" for name, nbytes in (peak.node_bytes | peak.device_bytes).items())


# A roof that moved by more during the run was another machine's, as far as shares of it go.
ROOF_MOVED = 0.15
_MOST_NAMES = 8
# Of one kind of roof: round and value of every sample.
_Samples = list[tuple[int, float]]
_Watched = tuple[Row, list[Facts]]


def machine_warnings(run: Run) -> tuple[str, ...]:
    """What was wrong with a machine whenever a worker session began, each thing once, with its effect."""
    every = [environment.facts for environment in environments_of(run)]
    found = {warned.check.name: warned for facts in every for warned in warnings(MACHINE_CHECKS, facts)}
    return tuple(f"Warning: {warned.text}; {warned.check.harm}." for warned in found.values())


def unreadable_sentence(run: Run) -> str:
    """Which facts of their health the machines do not report, and why; empty where they report all.

    Where they do not all lack the same each is named by its id.
    """
    machines = machines_of(run)
    holders = names_by((env_id, lacking) for env_id, facts in machines.items() if (lacking := _unreadable(facts)))
    return " ".join(
        f"Not readable {'here' if len(ids) == len(machines) else 'on ' + ' and '.join(ids)}: {lacking}."
        for lacking, ids in holders.items()
    )


def _unreadable(facts: Facts) -> str:
    """Names by the reason that they share: `governor, clock (no cpufreq)`."""
    by_reason = names_by((facts.get("missing") or {}).items())
    return "; ".join(f"{', '.join(names)} ({reason})" for reason, names in by_reason.items())


def roof_warnings(rows: Sequence[Row]) -> tuple[str, ...]:
    """Roofs that were further from their median in some rounds than shares of them can bear."""
    return tuple(
        filter(None, (_roof_warning(*kind, samples) for kind, samples in sorted(_roofs(measured(rows)).items())))
    )


def _roof_warning(name: str, unit: str, scale: float, samples: _Samples) -> str:
    usual = median(value for _, value in samples)
    by_round = {number_: median(values) for number_, values in sorted(group_by(samples).items())}
    off = {number_: mid for number_, mid in by_round.items() if abs(mid / usual - 1) > ROOF_MOVED}
    if not off:
        return ""
    ends = dict.fromkeys(number(value / scale, 3) for value in extremes(off.values()))
    return _phrase(
        "roof_moved",
        name=name,
        unit=unit,
        ends=ends,
        rounds=[*off],
        usual=number(usual / scale, 3),
        tolerance=ROOF_MOVED,
    )


def trial_warnings(rows: Sequence[Row], name: Callable[[Row], str]) -> tuple[str, ...]:
    """What happened to timed steps: for each check that found something the cells affected, and the worst of it.

    First the cells that were faster than their roof.
    """
    watched = [(row, facts) for row in measured(rows) if (facts := watched_trials(row))]
    checked = (_trial_line(check, watched, name) for check in TRIAL_CHECKS)
    return tuple(filter(None, (_beyond_roof(rows, name), *checked)))


def _beyond_roof(rows: Sequence[Row], name: Callable[[Row], str]) -> str:
    """Shares that no cell can have, of roofs too rough for the trial to be IMPLAUSIBLE; empty without any."""
    shares = [(row, share) for row in measured(rows) if (share := row.interval("roof_share"))]
    beyond = [(row, share) for row, share in shares if share.mid > _MOST_OF_A_ROOF]
    cells = [f"{name(row)} at {share.mid:.0%} of {row.values['nearer_roof']}" for row, share in beyond]
    return _phrase("beyond_roof", cells=listed(cells)) if cells else ""


def listed(names: Sequence[str]) -> str:
    """The first few of many names, each once, and how many more there are."""
    names = list(dict.fromkeys(names))
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return f"{'; '.join(names[:_MOST_NAMES])}{more}"


def _trial_line(check: Check, watched: Sequence[_Watched], name: Callable[[Row], str]) -> str:
    # Several rows where a name stands for an arm at several points.
    trials = group_by((name(row), one) for row, facts in watched for one in facts)
    affected = {who: found for who, facts in trials.items() if (found := findings(check, facts))}
    if not affected:
        return ""
    cells = [f"{who} in {len(found)} of {len(trials[who])} trials" for who, found in affected.items()]
    worst, text = max((pair for found in affected.values() for pair in found), key=lambda pair: _rate(check, pair[0]))
    seconds = number(worst["seconds"], 2)
    return f"{listed(cells)} — {check.name}: at worst, in {seconds} s of steps, {text}; {check.harm}"


def _rate(check: Check, facts: Facts) -> float:
    """How much there was of what the check is about: as a share of what is usual, or of the cpus' time, or a second."""
    name = check.needs[0]
    amount, usual = float(facts[name]), float(facts.get(f"usual_{name}") or 0)
    if usual:
        return abs(amount / usual - 1)
    return amount / float(facts["seconds"]) / (int(facts["cpus"]) if name.endswith("_s") else 1)


def _roofs(rows: Sequence[Row]) -> dict[tuple[str, str, float], _Samples]:
    """Samples by kind of roof: its name, unit and scale. Teams of other sizes have other roofs."""
    several = len({row.spec.engine.threads for row in rows}) > 1
    teams = [(row, f" of {row.spec.engine.threads or 'all'} threads" if several else "") for row in rows]
    return group_by(pair for row, team in teams for record in row.records for pair in _kinds(record, team))


def _kinds(record: Record, team: str) -> Iterator[tuple[tuple[str, str, float], tuple[int, float]]]:
    for roof in record.roofs:
        yield (f"read bandwidth{team}", "GB/s", 1e9), (record.round, roof.read_bytes_per_s)
        if roof.peak_flops is not None:
            name = f"{roof.peak_isa} {roof.peak_dtype} peak{team}"
            yield (name, unit_of(roof.peak_dtype), 1e12), (record.round, roof.peak_flops)
