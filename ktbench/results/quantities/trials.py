"""The trials of a cell, each with what only the others of the cell can tell of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median

from ktbench.results.serving.latency import keeps, percentile
from ktbench.spec.core_layout import core_layout_of
from ktbench.spec.record import Record, RoofSample, Work
from ktbench.spec.run_spec import RunSpec
from ktbench.spec.serving.replay import Latency, Replay
from ktbench.spec.system_metrics import Energy

# Roofs before and after a trial whose read bandwidths differ by more do not hold for the time between them.
MAX_DISAGREEMENT = 1.2


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """A counting trial of a cell.

    `least_s` are the seconds that reading the weights and that the arithmetic must take by the roofs next to it; None
    without work or roofs, and where these do not hold although those of other trials do. `bound_s` is the larger of the
    two, of the other trials where it has none itself. `energy` is None where it was not metered for long enough, or not
    by the same meters in all trials. `latencies` are those of the requests that it served, and `has_gaps` says whether
    every trial has answers of more than one token.
    """

    record: Record
    spec: RunSpec
    least_s: tuple[float, float] | None = None
    bound_s: float | None = None
    is_steady: bool = False
    energy: Energy | None = None
    latencies: tuple[Latency, ...] = ()
    has_gaps: bool = False

    @property
    def step_s(self) -> float:
        """The median step. Raises statistics.StatisticsError of a trial without samples."""
        return median(self.record.samples_s)

    @property
    def tokens(self) -> int:
        """Tokens of the timed steps; where requests were served, those of their answers."""
        if self.record.replay is not None:
            return self.record.replay.output_tokens
        return len(self.record.samples_s) * self.spec.workload.tokens_per_step

    @property
    def replayed_s(self) -> float:
        """How long requests were served, from the begin to the last token."""
        return self.record.replay.seconds if self.record.replay else 0.0

    @property
    def user_rates(self) -> list[float]:
        """Tokens a second of each answer of more than one, from its first on; tokens of one step come at once."""
        gaps = (latency.mean_gap_s for latency in self.latencies)
        return [1 / gap for gap in gaps if gap]


def trials_of(records: Sequence[Record], spec: RunSpec) -> tuple[Trial, ...]:
    """The trials that `records`, all those of a cell that count, are of."""
    joules = dict(metered(records))
    energies = joules if len({frozenset(energy.counted) for energy in joules.values()}) == 1 else {}
    usable = {one.round: one.work for one in records if one.work and one.roofs and one.samples_s}
    steady = {one.round for one in records if one.round in usable and _is_steady(one)}
    least_s = {
        one.round: _least_s(usable[one.round], one.roofs) for one in records if one.round in (steady or usable.keys())
    }
    usual_s = median(map(max, least_s.values())) if least_s else None
    found = [
        Trial(
            record=one,
            spec=spec,
            least_s=(mine := least_s.get(one.round)),
            bound_s=max(mine) if mine else usual_s if one.round in usable else None,
            is_steady=one.round in steady,
            energy=energies.get(one.round),
            latencies=one.replay.latencies if one.replay is not None and spec.workload.stream else (),
        )
        for one in records
    ]
    return tuple(_with_gaps(found)) if any(trial.latencies for trial in found) else tuple(found)


def _with_gaps(trials: Sequence[Trial]) -> Iterator[Trial]:
    has_gaps = all(trial.user_rates for trial in trials)
    yield from (replace(trial, has_gaps=has_gaps) for trial in trials)


def energies_of(records: Sequence[Record]) -> Iterator[tuple[int, Energy]]:
    """The energy of each round with samples that has any."""
    for record in records:
        if record.samples_s and record.system_metrics and record.system_metrics.energy:
            yield record.round, record.system_metrics.energy


def metered(records: Sequence[Record]) -> Iterator[tuple[int, Energy]]:
    """That of each round that was metered for long enough."""
    yield from ((number, energy) for number, energy in energies_of(records) if energy.is_resolved)


def _is_steady(record: Record) -> bool:
    """Whether the cores stayed where they were, and the roofs before and after the trial agree."""
    reads = [roof.read_bytes_per_s for roof in record.roofs]
    return core_layout_of(record) != "moved" and max(reads) <= MAX_DISAGREEMENT * min(reads)


def _least_s(work: Work, roofs: Sequence[RoofSample]) -> tuple[float, float]:
    """Seconds that reading the weights and seconds that the arithmetic must take; without a peak that takes none."""
    peaks = [roof.peak_flops for roof in roofs if roof.peak_flops is not None]
    reading_s = work.weight_bytes / fmean(roof.read_bytes_per_s for roof in roofs)
    return reading_s, work.flops / fmean(peaks) if peaks else 0.0


def share_of_steps(role: str) -> Callable[[Trial], float | None]:
    """The share of the timed steps that a field of RoleTimes takes, as a function of a trial."""

    def share(trial: Trial) -> float | None:
        roles = trial.record.roles
        seconds = getattr(roles, role) if roles and roles.total_s > 0 else None
        return None if roles is None or seconds is None else float(seconds / roles.total_s)

    return share


def part_of_step(name: str) -> Callable[[Trial], float | None]:
    """Seconds of a field of StepParts, the mean over the steps of a trial."""

    def seconds(trial: Trial) -> float | None:
        parts, steps = trial.record.parts, len(trial.record.samples_s)
        return None if parts is None else float(getattr(parts, name) / steps)

    return seconds


def of_replay(value: Callable[[Replay], float | None]) -> Callable[[Trial], float | None]:
    """A value of the replay of a trial; None where it served no requests."""
    return lambda trial: value(trial.record.replay) if trial.record.replay and trial.latencies else None


def kept(trial: Trial) -> int | None:
    """How many requests kept the SLO; None without one."""
    stream = trial.spec.workload.stream
    if stream is None or not stream.slo.is_set or not trial.latencies:
        return None
    return sum(keeps(latency, stream.slo) for latency in trial.latencies)


def percentile_of(share: float, seconds: Callable[[Trial], Sequence[float]]) -> Callable[[Trial], float | None]:
    """A percentile over what is known of the requests of a trial, in seconds; None where nothing is."""
    return lambda trial: percentile(found, share) if (found := seconds(trial)) else None


def first_tokens(trial: Trial) -> list[float]:
    """The time to the first token of each request."""
    return [latency.ttft_s for latency in trial.latencies]


def gaps(trial: Trial) -> list[float]:
    """The times between two tokens of each request; nothing where a trial of the cell has none."""
    return [seconds for latency in trial.latencies for seconds in latency.gaps_s] if trial.has_gaps else []


def whole_answers(trial: Trial) -> list[float]:
    """The time to the last token of each request."""
    return [latency.end_to_end_s for latency in trial.latencies]
