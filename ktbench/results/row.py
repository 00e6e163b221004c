"""One row per cell: everything that tables and figures show of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ktbench.results.intervals import Interval
from ktbench.results.settings import TOKENS, Setting, group_by, shown_setting
from ktbench.results.speedups import TrialTime, Verdict
from ktbench.results.usage import evidence_of
from ktbench.spec.core_layout import CoreLayout, core_layout_of
from ktbench.spec.features import FeatureValue
from ktbench.spec.machine import MachineSpec
from ktbench.spec.record import Agreement, Compared, Learning, Outcome, Provenance, Record, Role, Work
from ktbench.spec.run_spec import RunSpec
from ktbench.spec.step.work import routed_bytes, routed_weights
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

    `values` are what its trials come to, by the names of the table of quantities. `step_s` is the median over rounds of
    the rounds' median step in seconds, where requests were served seconds per output token; it is there where the
    outcome is timed, as are the `trial_times` by round. `speedup` is over the baseline of the group, the rows of the
    same `part` with equal `settings`, `gain` over the row of equal precision that lacks only its last feature; both are
    formed inside rounds between trials with the cores in the same place. An `unproven` row was timed beside other
    systems, and its answers were not compared with theirs. `missing` says why a timed row lacks a value.
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
    command: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)
    trial_times: Mapping[int, TrialTime] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
    unproven: bool = False
    speedup: Interval | None = None
    verdict: Verdict = Verdict.UNSURE
    gain: Gain | None = None
    missing: dict[str, str] = field(default_factory=dict)

    def interval(self, name: str) -> Interval | None:
        """What its trials come to in a quantity with an interval; None where it has no value."""
        found: Interval | None = self.values.get(name)
        return found

    def why_no(self, name: str) -> str:
        """Why a value is missing; empty where nothing is to be said."""
        return self.missing.get(name, "") if self.timed else self.ending

    @property
    def step_s(self) -> Interval | None:
        """Seconds a step; None unless the row was timed."""
        return self.interval("step_s")

    @property
    def tokens_per_s(self) -> Interval | None:
        """Tokens a second, where requests were served those of all answers."""
        served = self.interval("output_per_s")
        return served or (self.step_s and self.step_s.per(self.spec.workload.tokens_per_step))

    @property
    def has_whole(self) -> bool:
        """Whether a step is a measured one of a slice, which the whole model has as well."""
        spec = self.spec
        return spec.model.is_slice and spec.machine is None and spec.workload.phase in ("decode", "prefill")

    @property
    def whole_tokens_per_s(self) -> Interval | None:
        """Tokens/s of the whole model, every layer and the output head taking as long as in the slice."""
        factor = self.spec.model.whole_over_slice if self.has_whole else None
        return self.step_s.per(self.spec.workload.tokens_per_step / factor) if factor and self.step_s else None

    @property
    def read_bytes_per_s(self) -> float | None:
        """Bytes of weights that a step reads at least, a second."""
        return self.work.weight_bytes / self.step_s.mid if self.work and self.step_s else None

    @property
    def flops_per_s(self) -> float | None:
        """Operations that a step does at least, a second."""
        return self.work.flops / self.step_s.mid if self.work and self.step_s else None

    @property
    def agreement(self) -> Agreement | None:
        """The worst of all rounds."""
        found: Agreement | None = self.values.get("agreement")
        return found

    @property
    def peak(self) -> PeakMemory | None:
        """The most of all rounds, where it could be read."""
        found: PeakMemory | None = self.values.get("peak")
        return found

    @property
    def evidence(self) -> str | None:
        """What counters of the requested features saw."""
        return evidence_of(self.records) if self.timed else None

    @property
    def error(self) -> float | None:
        """The largest error of all rounds; where one failed, the error that it failed with."""
        failed = [record.error for record in self.records if not record.outcome.timed]
        if failed:
            return failed[-1]
        return max((record.error for record in self.records if record.error is not None), default=None)

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
        return bool(self.values.get("output_per_s")) and not self.values.get("itl_p50_s")

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
    def round_s(self) -> dict[int, float]:
        """Median step of each round in seconds; empty where the row has no speed to show."""
        return {number: trial.step_s for number, trial in self.trial_times.items()}

    @property
    def core_layouts(self) -> dict[int, CoreLayout | None]:
        """Where the cores were in each round that has samples; None where that was not measured."""
        return {record.round: core_layout_of(record) for record in self.records if record.samples_s}


def groups_of(rows: Sequence[Row]) -> list[tuple[Row, ...]]:
    """Rows of one part with equal settings together, in order of appearance."""
    return [tuple(group) for group in group_by(((row.part, *row.settings.items()), row) for row in rows).values()]


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
    for curve in group_by(((row.shown, *_other_settings(row)), row) for row in rated).values():
        best = curve[0]
        for row in curve[1:]:
            if _rate(row) < (1 - MAX_FALL) * _rate(best):
                yield row, best
            best = max(best, row, key=_rate)


def _rate(row: Row) -> float:
    return row.flops_per_s or 0.0


def _other_settings(row: Row) -> Iterator[tuple[str, Setting]]:
    return ((key, value) for key, value in row.settings.items() if key not in (TOKENS, "workload.steps"))


def experts_bytes(row: Row) -> int:
    """Bytes of the routed experts of a cell with their scales, of one layer where that runs alone."""
    return routed_bytes(row.spec)


def stored_bits(row: Row) -> float:
    """Bits of a routed expert's weight with its part of the scales, on average.

    Those of its format: rows of small models that end within a block take more, which `experts_bytes` counts.
    """
    return 8 * experts_bytes(row) / routed_weights(row.spec)


def systems_of(rows: Sequence[Row]) -> tuple[str, ...]:
    """The systems of rows, in order of appearance."""
    return tuple(dict.fromkeys(row.spec.system for row in rows))


def shows_speeds(rows: Sequence[Row]) -> bool:
    """Whether bars are speeds: those of systems of which none has to be there for the others to be compared."""
    return len(systems_of(rows)) > 1 and not rows[0].is_layer
