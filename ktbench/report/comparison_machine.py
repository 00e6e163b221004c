"""What the machine did between two runs: the limits next to their turns, and what noise alone did in either."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import mean, median

from ktbench.results import Run
from ktbench.results.intervals import Interval
from ktbench.results.row import Row, groups_of
from ktbench.results.run import each_machine
from ktbench.results.usage import Limit
from ktbench.spec.errors import RequestError
from ktbench.spec.record import Record


@dataclass(frozen=True, kw_only=True, slots=True)
class RoofRatio:
    """How many times as high the roof `limit` was next to the turns of the second run: the medians of both."""

    limit: Limit
    ratio: float

    def is_beyond(self, tolerance: float) -> bool:
        """Whether the machine itself changed by more than a comparison tolerates."""
        return not 1 / (1 + tolerance) <= self.ratio <= 1 + tolerance


def roof_ratio(before: Row, after: Row) -> RoofRatio | None:
    """The ratio of the roofs that a cell is nearer to, on machines that both runs timed it on.

    None where one run has none, or one of other arithmetic.
    """
    limit: Limit = after.roof.limit if after.roof else "read"
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
    """The roof of each turn: the mean of the samples before and after it."""
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
        control = next((row.speedup for row in group if row.role == "control" and row.speedup), None)
        if control and control.sound:
            found |= {row.cell: control for row in group}
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
