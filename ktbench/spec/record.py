"""The record: one trial of one cell, with every sample and everything needed to trust and repeat it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Literal

from ktbench.spec.errors import fields_at_least, number_at_least, repeated, require_name
from ktbench.spec.features import BY_NAME, FEATURES, FeatureValue
from ktbench.spec.run_spec import MeasureSpec, RunSpec
from ktbench.spec.serving.replay import Replay
from ktbench.spec.suite import SuiteSpec
from ktbench.spec.sweep import FigureKind, FigureStyle
from ktbench.spec.system_metrics import MachineFacts, SystemMetrics
from ktbench.spec.wire import from_plain


class Outcome(StrEnum):
    """End of one trial of a cell, or of the cell as a whole."""

    OK = "OK"
    NOISY = "NOISY"  # the ceiling on rounds or time was hit before the interval closed
    IDLE = "IDLE"  # a requested feature did not engage, or one not requested did
    UNSUPPORTED = "UNSUPPORTED"  # this machine or engine cannot run it; the reason says what is missing
    WRONG = "WRONG"  # the output differs from the float32 reference
    VACUOUS = "VACUOUS"  # the check could not have failed: it let a mutant pass
    IMPLAUSIBLE = "IMPLAUSIBLE"  # faster than reading the weights or the arithmetic can be on this machine
    CRASHED = "CRASHED"
    TIMEOUT = "TIMEOUT"
    NO_MEMORY = "NO_MEMORY"

    @property
    def timed(self) -> bool:
        """Whether samples under this outcome may be shown as the cell's speed."""
        return self in (Outcome.OK, Outcome.NOISY)


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """One feature of one trial. `seen` is None where the engine keeps no such counter.

    A log may be of a version with features that this one does not have: they go by the names that it has for them.
    """

    feature: str
    asked: FeatureValue
    counter: str
    seen: int | None

    def __post_init__(self) -> None:
        fields_at_least(self, 0, "seen")

    @property
    def wanted(self) -> bool:
        """Whether the feature was requested to be on."""
        known = BY_NAME.get(self.feature)
        return bool(self.asked) if known is None else self.asked != known.off

    @property
    def honest(self) -> bool:
        """A wanted feature must be seen at work, but where data decide; an unwanted one must not be."""
        if self.seen is None:
            return not self.wanted
        return (self.seen > 0) == self.wanted or (self.wanted and self.may_be_zero)

    @property
    def may_be_zero(self) -> bool:
        """Whether data decide that a feature that is on has nothing to do."""
        known = BY_NAME.get(self.feature)
        return known is not None and known.may_be_zero

    def __str__(self) -> str:
        seen = "not counted" if self.seen is None else f"{self.seen:,}"
        mark = BY_NAME[self.feature].mark if self.feature in BY_NAME else self.feature
        return f"{mark}: {self.counter} {seen}, requested {'on' if self.wanted else 'off'}"


def collect(requested: Mapping[str, FeatureValue], counted: Mapping[str, int]) -> tuple[Evidence, ...]:
    """Evidence for every feature: `requested` by feature name (absent: off), `counted` by counter name over the timed
    work alone.
    """
    return tuple(
        Evidence(feature=f.name, asked=requested.get(f.name, f.off), counter=f.counter, seen=counted.get(f.counter))
        for f in FEATURES
    )


def dishonest(evidence: tuple[Evidence, ...]) -> str:
    """Why this evidence contradicts what was requested; empty when it does not."""
    return "; ".join(str(e) for e in evidence if not e.honest)


def idle_by_data(evidence: tuple[Evidence, ...]) -> str:
    """A note on features that are on and had nothing to do on this data; empty where all had."""
    return "; ".join(f"{e}: nothing to do on this data" for e in evidence if e.wanted and e.may_be_zero and not e.seen)


SCORE = "score"
KL = "kl_nats"
_MOST_VALUE = 1e9


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleResult:
    """One answer of one cell and its worth.

    `question` is the same for every cell that was asked the same. `metric` is `score` (0 to 1) where answers are
    graded; what is measured, in their place or of right answers beside them, is `nll_nats`, `kl_nats`, `top1`: values
    are means over `weight` tokens then. None is an answer that cannot be graded here, `why` says why. `tokens` counts
    the new tokens of a generated answer, None where none was generated. Questions of one `cluster` of a task are not
    independent; empty: a cluster of its own.
    """

    cell: str
    task: str
    question: str
    value: float | None
    metric: str = SCORE
    weight: float = 1.0
    sample: int = 0
    tokens: int | None = None
    answer: str = ""
    why: str = ""
    cluster: str = ""

    def __post_init__(self) -> None:
        fields_at_least(self, 0, "weight", "sample", "tokens")
        least = 0 if self.metric == SCORE else -_MOST_VALUE
        number_at_least(f"SampleResult.value of {self.metric}", self.value, least)


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskResult:
    """The end of one task of one cell: its `answers` count from here on, of all metrics and samples of its `questions`.

    `answers` is 0 in logs that did not count them. `cached` of its `requests` had been answered before by the same
    engine, and are not in `evidence`, `took_s` and the token counts. `cut_answers` have as many tokens as there was
    room for, `cut_prompts` lost their beginning to the model's context. `setting` says how the questions were put where
    that is not plain from the spec. `lm_eval` is what lm-eval's file of results says of the task, empty where it has no
    such task (`ktbench.report.exchange.lm_eval`).
    """

    cell: str
    label: str
    task: str
    outcome: Outcome
    provenance: Provenance
    code_id: str
    env_id: str
    started: str
    why: str = ""
    took_s: float = 0.0
    questions: int = 0
    answers: int = 0
    requests: int = 0
    cached: int = 0
    prompt_tokens: int = 0
    new_tokens: int = 0
    cut_answers: int = 0
    cut_prompts: int = 0
    evidence: tuple[Evidence, ...] = ()
    setting: str = ""
    lm_eval: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _require_time("TaskResult.started", self.started)
        fields_at_least(self, 0, "took_s", "questions", "answers", "requests", "cached", "prompt_tokens", "new_tokens")
        fields_at_least(self, 0, "cut_answers", "cut_prompts")


LATEST = "latest"  # names the run that was started or resumed last
Provenance = Literal["measured", "simulated", "published"]
Role = Literal["arm", "control"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One line of a plan. A control repeats the baseline under its own name, to show what noise alone does.

    A `copy` repeats a cell as a control with weights of its own in memory; cells that share weights are of one copy.
    `part` names the part of the sweep (`Part.name`) whose table shows the cell, empty in a sweep of one part.
    """

    label: str
    spec: RunSpec
    spec_id: str
    role: Role = "arm"
    part: str = ""
    copy: int = 0

    @property
    def key(self) -> str:
        """Identity inside a run: the spec, the part of the sweep it stands in, and which of its repetitions this is."""
        words = (self.spec_id, self.part, "" if self.role == "arm" else self.role, str(self.copy or ""))
        return "-".join(word for word in words if word)

    @property
    def arm(self) -> str:
        """The label without the mark of a repetition: `base` of `base (A/A)`."""
        return self.label.partition(" (A/A")[0]

    @property
    def weights_key(self) -> tuple[object, ...]:
        """Cells with equal keys share one worker (see `RunSpec.weights_key`)."""
        return (self.copy, *self.spec.weights_key)


@dataclass(frozen=True, kw_only=True, slots=True)
class RoofSample:
    """The machine's limits next to a trial: read bandwidth in bytes/s, arithmetic peak in FLOP/s.

    `peak_flops` is None where `peak_isa` is `reference`: portable code has no peak worth comparing with.
    `peak_dtype` names the numbers that the peak multiplies, `ping_pong_ns` is the time a cache line takes from core to
    core (None with one core): it labels where a hypervisor has placed the cores at that moment.
    """

    read_bytes_per_s: float
    peak_flops: float | None
    peak_isa: str
    ping_pong_ns: float | None = None
    peak_dtype: str = "bf16"

    def __post_init__(self) -> None:
        fields_at_least(self, 1, "read_bytes_per_s", "peak_flops")
        fields_at_least(self, 0, "ping_pong_ns")


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """What one step must do at least: weight bytes read once, floating-point operations, tokens put through."""

    weight_bytes: int
    flops: int
    tokens: int

    def __post_init__(self) -> None:
        fields_at_least(self, 0, "weight_bytes", "flops", "tokens")

    def least_s(self, read_bytes_per_s: float, peak_flops: float | None) -> float:
        """Seconds that a step takes at least (Williams, Waterman and Patterson, Roofline, CACM 52(4), 2009)."""
        return max(self.weight_bytes / read_bytes_per_s, self.flops / peak_flops if peak_flops else 0.0)

    def trained(self, *, head: int, layers: int, lora: int) -> Work:
        """A training step around this forward pass, which goes back through the same weights, all of them frozen.

        Gradients of inputs are as many operations as the forward pass has, `head` of which are the output head's; of
        `layers` the first is left out: nothing below it is trained. `lora` counts the weights of LoRA that a token
        meets: six operations each, for forward, gradients of inputs and gradients of weights. Both passes read every
        weight once.
        """
        back = head + (self.flops - head) * (layers - 1) // layers
        flops = self.flops + back + 6 * self.tokens * lora
        return Work(weight_bytes=2 * self.weight_bytes, flops=flops, tokens=self.tokens)


@dataclass(frozen=True, kw_only=True, slots=True)
class RoleTimes:
    """What the roles did during the timed steps of a trial, in seconds over all of them together.

    `host_busy_s` is the time in which routed experts ran on the host, `device_wait_s` that in which the device role
    had nothing to do but wait for them, None of a CUDA device, which waits unseen; `total_s` is from the begin of the
    first step to the end of the last.
    """

    host_busy_s: float
    device_wait_s: float | None
    total_s: float

    def __post_init__(self) -> None:
        fields_at_least(self, 0, "host_busy_s", "device_wait_s", "total_s")

    @property
    def device_busy_s(self) -> float | None:
        """The time in which the device role worked."""
        return None if self.device_wait_s is None else self.total_s - self.device_wait_s

    @property
    def overlap_s(self) -> float | None:
        """The time in which both roles worked."""
        return None if self.device_wait_s is None else max(0.0, self.host_busy_s - self.device_wait_s)


@dataclass(frozen=True, kw_only=True, slots=True)
class StepParts:
    """The parts of a training step, in seconds over all timed steps of a trial together, and the loss of each step.

    A simulated step has no losses.
    """

    forward_s: float
    backward_s: float
    optimiser_s: float
    losses: tuple[float, ...]

    def __post_init__(self) -> None:
        fields_at_least(self, 0, "forward_s", "backward_s", "optimiser_s")


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldOut:
    """How well a model completes so many `examples` that it is not trained on.

    `loss` is the mean in nats a token of the completions, `exact` the share that greedy decoding completes exactly.
    """

    loss: float
    exact: float
    examples: int

    def __post_init__(self) -> None:
        fields_at_least(self, 0, "loss", "exact", "examples")


@dataclass(frozen=True, kw_only=True, slots=True)
class Learning:
    """What training on examples taught: how well the held-out ones are completed before the first step and at the end.

    The losses of the steps are those of `StepParts`.
    """

    before: HeldOut
    after: HeldOut


@dataclass(frozen=True, kw_only=True, slots=True)
class Agreement:
    """Logits held against those of another system with the same weights, at the same positions of the same tokens.

    `against` is the label of the other, `top1` the share of `positions` at which both hold the same token most likely,
    `kl_nats` the mean divergence KL(other ‖ this) of their distributions. Of the cell that the others of its group are
    held against `against` is empty.
    """

    against: str
    top1: float
    kl_nats: float
    positions: int

    def __post_init__(self) -> None:
        fields_at_least(self, 0, "top1", "positions")
        if not self.kl_nats >= -1:  # rounding may take it below 0; infinite where an output is not finite
            raise ValueError(f"Agreement.kl_nats={self.kl_nats}: must be at least -1")


@dataclass(frozen=True, kw_only=True, slots=True)
class Compared:
    """What of a cell was compared with float32 since its worker was started, this trial included.

    `experts` of the `of_experts` of all layers together, copies of a layer alone counting as layers; `steps` of the
    `of_steps` that are timed in a trial.
    """

    experts: int
    of_experts: int
    steps: int
    of_steps: int

    def __post_init__(self) -> None:
        fields_at_least(self, 0, "experts", "of_experts", "steps", "of_steps")

    def __str__(self) -> str:
        experts = f"{self.experts:,} of {self.of_experts:,} experts, " if self.of_experts else ""
        return f"{experts}{self.steps:,} of {self.of_steps:,} steps"


# A step that takes less than a cycle, or centuries, was not measured and cannot be reckoned with.
_LEAST_S, _MOST_S = 1e-12, 1e12


def time_of(text: str) -> datetime:
    """A time as records note it, in UTC where they name no zone. Raises ValueError for what is none."""
    time = datetime.fromisoformat(text)
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


def _require_time(key: str, text: str) -> None:
    """Raise ValueError for what is no time; it is empty where it was not noted."""
    try:
        if text:
            time_of(text)
    except ValueError:
        raise ValueError(f"{key}={text!r}: must be a time such as 2026-01-31T12:00:00+00:00") from None


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """One trial. `samples_s` holds the seconds of every timed step, never a mean; empty unless the outcome is timed.

    `error` is the relative Frobenius error of the expert outputs against the float32 reference on the very inputs,
    `worker_session` names the worker process, `roofs` were sampled right before and right after the timed steps,
    `took_s` is the whole trial with warm-up and checks in seconds. `roles` is there where the roles are concurrent;
    `notes` are the system's own remarks, such as what `deferral=auto` chose and why. `agreement` is there where systems
    are compared, `own_step_s` the mean step in seconds by the clock of a system or CUDA device that has one.
    `system_metrics` is what was seen of the machine meanwhile, None where it was not monitored. `replay` is there where
    requests were served: samples are seconds per output token then, and follow from it. `parts` is there where a model
    was trained, `learning` where that was on examples. `compared` is there where steps can be examined one by one.
    """

    cell: str
    label: str
    round: int
    outcome: Outcome
    provenance: Provenance
    code_id: str
    env_id: str
    worker_session: str
    started: str
    took_s: float = 0.0
    why: str = ""
    samples_s: tuple[float, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    error: float | None = None
    work: Work | None = None
    roofs: tuple[RoofSample, ...] = ()
    roles: RoleTimes | None = None
    notes: tuple[str, ...] = ()
    agreement: Agreement | None = None
    own_step_s: float | None = None
    system_metrics: SystemMetrics | None = None
    replay: Replay | None = None
    parts: StepParts | None = None
    learning: Learning | None = None
    compared: Compared | None = None

    def __post_init__(self) -> None:
        if self.samples_s and not self.outcome.timed:
            raise ValueError(f"record {self.cell} round {self.round}: {self.outcome} must not hold samples")
        if self.outcome.timed and not self.samples_s:
            raise ValueError(f"record {self.cell} round {self.round}: {self.outcome} without samples")
        if wrong := [step_s for step_s in self.samples_s if not _LEAST_S <= step_s <= _MOST_S]:
            raise ValueError(f"record {self.cell} round {self.round}: no step takes {wrong[0]} s")
        _require_time("Record.started", self.started)
        fields_at_least(self, 0, "round", "took_s", "error", "own_step_s")


@dataclass(frozen=True, kw_only=True, slots=True)
class Environment:
    """The machine and the code behind records: `facts` is plain content, shown in reports as it is.

    Raises ValueError for a fact of another type than `MachineFacts` says.
    """

    env_id: str
    code_id: str
    facts: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        from_plain(self.facts, MachineFacts)


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One table and one figure of a run. `baseline` is the label of the arm that its other arms are compared with.

    `published` names the figures, or panels of them, whose numbers are shown beside its cells.
    """

    name: str
    title: str
    baseline: str
    figure: FigureKind = "bars"
    published: tuple[str, ...] = ()
    style: FigureStyle | None = None

    def __post_init__(self) -> None:
        if self.name:
            require_name("Part.name", self.name)


@dataclass(frozen=True, kw_only=True, slots=True)
class Header:
    """First line of a run: what was planned and the command that planned it.

    A run of one part names it "" and so do its cells. With a `suite` its cells answer questions.
    """

    run: str
    title: str
    ablation: str
    created: str
    command: tuple[str, ...]
    parts: tuple[Part, ...]
    cells: tuple[Cell, ...]
    measure: MeasureSpec
    code_id: str
    env_id: str
    suite: SuiteSpec | None = None

    def __post_init__(self) -> None:
        _require_time("Header.created", self.created)
        names = [part.name for part in self.parts]
        if not names or repeated(names) is not None:
            raise ValueError(f"Header.parts: must be parts of different names, not {names}")
        if lost := [cell.key for cell in self.cells if cell.part not in names]:
            raise ValueError(f"Header.cells: {lost[0]} is in none of the parts {names}")
        if len({cell.key for cell in self.cells}) < len(self.cells):
            raise ValueError("Header.cells: two cells have the same key")
