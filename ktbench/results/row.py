"""One row per cell: everything that tables and figures show of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import mean, median

from ktbench.results.intervals import Interval
from ktbench.results.published import deferral_cost
from ktbench.results.serving.latency import Serving
from ktbench.results.settings import TOKENS, Setting, by_key, shown_setting
from ktbench.results.speedups import TrialTime, Verdict, trial_time
from ktbench.results.usage import EnergyUse, PartTimes, RoleShares, RoofShare
from ktbench.spec.core_layout import CoreLayout, core_layout_of
from ktbench.spec.features import FeatureValue
from ktbench.spec.machine import MachineSpec
from ktbench.spec.record import Agreement, Compared, Learning, Outcome, Provenance, Record, Role, Work
from ktbench.spec.run_spec import RunSpec
from ktbench.spec.system_metrics import PeakMemory


@dataclass(frozen=True, kw_only=True, slots=True)
class Gain:
    """What the last feature of a row adds to the row `over` that lacks only this one."""

    over: str
    ratio: Interval
    verdict: Verdict


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A cell over all its rounds. `outcome` is None before its first trial.

    `step_s` is the median over rounds of the rounds' median step in seconds; it and all that follows from it are None
    unless the outcome is timed. `whole_tokens_per_s` is the speed of the whole model, extrapolated from that of a
    measured slice. `speedup` is over the baseline of the group, the rows of the same `part` with equal
    `settings`, `gain` over the row of equal precision that lacks only its last feature; both are formed inside rounds
    between trials with the cores in the same place. `roles` is there where they are separate, `parts` where a
    model was trained. `error` is the largest of
    all rounds, or that of the round that failed. `agreement` is the worst of all rounds; an `unproven` row was timed
    beside other systems and has none. `energy` and `peak` are there where they could be read, `serving` where requests
    were served: `step_s` is seconds per output token then. `missing` says why a measured
    field is None.
    """

    label: str
    role: Role
    copy: int
    part: str
    cell: str
    spec: RunSpec
    spec_id: str
    settings: dict[str, Setting]
    features: dict[str, FeatureValue]
    baseline: str
    is_baseline: bool
    outcome: Outcome | None
    why: str
    goal: float
    provenance: Provenance | None
    records: tuple[Record, ...]
    command: str
    step_s: Interval | None = None
    tokens_per_s: Interval | None = None
    whole_tokens_per_s: Interval | None = None
    read_bytes_per_s: float | None = None
    flops_per_s: float | None = None
    roof: RoofShare | None = None
    roles: RoleShares | None = None
    parts: PartTimes | None = None
    evidence: str | None = None
    error: float | None = None
    agreement: Agreement | None = None
    unproven: bool = False
    energy: EnergyUse | None = None
    peak: PeakMemory | None = None
    serving: Serving | None = None
    speedup: Interval | None = None
    verdict: Verdict = Verdict.UNSURE
    gain: Gain | None = None
    missing: dict[str, str] = field(default_factory=dict)

    @property
    def shown(self) -> str:
        """The label, with the mark of domains that are not the machine's own."""
        domains = self.spec.engine.domains if self.spec.engine.numa else None
        return self.label if domains is None else f"{self.label}, logical domains={domains}"

    @property
    def simulated(self) -> bool:
        """Whether the row is one step on a described machine, the same every time."""
        return self.spec.machine is not None

    @property
    def is_layer(self) -> bool:
        """Whether a step is one call of the experts of one layer."""
        return self.spec.workload.phase == "layer"

    @property
    def is_serving(self) -> bool:
        """Whether a step is a block of requests."""
        return self.spec.workload.phase == "serve"

    @property
    def is_wait(self) -> bool:
        """Whether every answer is one token, so that its speed is the time to the first token."""
        return self.serving is not None and self.serving.itl_s is None

    @property
    def is_training(self) -> bool:
        """Whether a step is one of training."""
        return self.spec.workload.phase == "train"

    @property
    def learning(self) -> Learning | None:
        """What the last round learned from examples; None where it did not end well, and of random tokens."""
        return self.records[-1].learning if self.timed else None

    @property
    def timed(self) -> bool:
        """Whether the row has a speed to show."""
        return self.step_s is not None

    @property
    def ending(self) -> str:
        """How a row without a speed ended: `CRASHED: killed by signal 9`."""
        return f"{self.outcome or 'not measured'}: {self.why}"

    @property
    def work(self) -> Work | None:
        """What a step must do at least; None before the first trial and where the system does not report it."""
        return self.records[-1].work if self.records else None

    @property
    def compared(self) -> Compared | None:
        """The most that any worker compared with float32; None where nothing was."""
        found = [record.compared for record in self.records if record.compared is not None]
        return max(found, key=lambda one: (one.experts, one.steps), default=None)

    @property
    def rounds(self) -> int:
        """Rounds that count."""
        return sum(bool(record.samples_s) for record in self.records)

    @property
    def samples(self) -> int:
        """Timed steps over all rounds."""
        return sum(len(record.samples_s) for record in self.records)

    @property
    def trial_times(self) -> dict[int, TrialTime]:
        """The trials of each round; empty where the row has no speed to show."""
        return {record.round: trial_time(record) for record in self.records} if self.timed else {}

    @property
    def round_s(self) -> dict[int, float]:
        """Median step of each round in seconds; empty where the row has no speed to show."""
        return {number: trial.step_s for number, trial in self.trial_times.items()}

    @property
    def remarks(self) -> tuple[str, ...]:
        """Remarks of the system in any round, each once; what deferral costs; how its own clock compares with ours."""
        remarks = dict.fromkeys(remark for record in self.records for remark in record.notes)
        return (*remarks, *self._deferral_cost(), *self._by_own_clock())

    def _deferral_cost(self) -> Iterator[str]:
        """What deferred experts cost in answers by published scores; of what `auto` chose, that there are none."""
        asked = [one.asked for record in self.records for one in record.evidence if one.feature == "deferral"]
        deferred = max((value for value in asked if isinstance(value, int)), default=0)
        name, is_chosen = self.spec.model.name, self.spec.engine.deferral == "auto"
        if deferred and (cost := deferral_cost(name, deferred)):
            yield f"deferring {deferred} experts changes answers: {cost}"
        elif deferred and is_chosen:
            yield f"deferring {deferred} experts changes answers; nothing is published of {name}"

    def _by_own_clock(self) -> Iterator[str]:
        """How much longer steps took than by the system's own clock."""
        shares = [mean(r.samples_s) / r.own_step_s - 1 for r in self.records if r.samples_s and r.own_step_s]
        if shares:
            low, mid, high = (f"{100 * share:.2g}" for share in (min(shares), median(shares), max(shares)))
            yield f"steps took {mid} % longer than by the system's own clock (median of the rounds; {low} to {high} %)"

    @property
    def core_layouts(self) -> dict[int, CoreLayout | None]:
        """Where the cores were in each round that has samples; None where that was not measured."""
        return {record.round: core_layout_of(record) for record in self.records if record.samples_s}


def groups_of(rows: Sequence[Row]) -> list[tuple[Row, ...]]:
    """Rows of one part with equal settings together, in order of appearance."""
    return [tuple(group) for group in by_key(((row.part, *row.settings.items()), row) for row in rows).values()]


def baseline_of(group: Sequence[Row]) -> Row | None:
    """The baseline of a group; None where it has none."""
    return next((row for row in group if row.is_baseline), None)


def control_of(group: Sequence[Row]) -> Row | None:
    """The baseline of a group a second time; None where it was not planned."""
    return next(iter(controls_of(group)), None)


def controls_of(group: Sequence[Row]) -> list[Row]:
    """The baseline of a group again, each time that it was planned; copies of other arms show noise of these alone."""
    base = baseline_of(group)
    return [row for row in group if row.role == "control" and base and row.spec_id == base.spec_id]


def comparable(row: Row) -> int | None:
    """Of how many rounds the speed-up is, or the time of a baseline: blocks of rounds where weights are loaded anew.

    None of a row without a time, and of a simulated one.
    """
    found = row.step_s if row.is_baseline else row.speedup
    return None if row.simulated or not row.timed or found is None else found.n


def place(row: Row, settings: Sequence[str]) -> str:
    """Label of a row with the settings that tell it from rows of other groups."""
    return ", ".join([row.shown, *(f"{key}={shown_setting(key, row.settings.get(key))}" for key in settings)])


def measured(rows: Iterable[Row]) -> list[Row]:
    """Rows of this machine."""
    return [row for row in rows if not row.simulated]


def machines_of(rows: Iterable[Row]) -> list[MachineSpec]:
    """Described machines, in order of appearance."""
    found: list[MachineSpec] = []
    for row in rows:
        if row.spec.machine is not None and row.spec.machine not in found:
            found.append(row.spec.machine)
    return found


def roof_rows(rows: Sequence[Row]) -> list[Row]:
    """Rows whose roofs can be drawn: all that ran against the same ones; none where rows are of several machines."""
    same = all(row.spec.machine == rows[0].spec.machine for row in rows)
    return [row for row in rows if any(record.roofs for record in row.records)] if same else []


# A kernel that reuses weights for more tokens must not get slower by more.
MAX_FALL = 0.05


def falls_of(rows: Iterable[Row]) -> Iterator[tuple[Row, Row]]:
    """Rows of a layer whose arithmetic rate is below that of fewer tokens per expert, each with the fastest of those.

    Rates differ by more than `MAX_FALL`; arm, precision and all other settings are the same.
    """
    rated = sorted(
        (row for row in rows if row.is_layer and row.flops_per_s), key=lambda row: row.spec.tokens_per_expert
    )
    for curve in by_key(((row.shown, *_other_settings(row)), row) for row in rated).values():
        best = curve[0]
        for row in curve[1:]:
            if _rate(row) < (1 - MAX_FALL) * _rate(best):
                yield row, best
            best = max(best, row, key=_rate)


def _rate(row: Row) -> float:
    return row.flops_per_s or 0.0


def _other_settings(row: Row) -> Iterator[tuple[str, Setting]]:
    return ((key, value) for key, value in row.settings.items() if key not in (TOKENS, "workload.steps"))


def systems_of(rows: Sequence[Row]) -> tuple[str, ...]:
    """The systems of rows, in order of appearance."""
    return tuple(dict.fromkeys(row.spec.system for row in rows))


def shows_speeds(rows: Sequence[Row]) -> bool:
    """Whether bars are speeds: those of systems of which none has to be there for the others to be compared."""
    return len(systems_of(rows)) > 1 and not rows[0].is_layer
