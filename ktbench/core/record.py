"""The record: one turn of one cell, with every sample and everything needed to trust and repeat it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from ktbench.core.evidence import Evidence
from ktbench.core.outcome import Outcome
from ktbench.core.spec import MeasureSpec, RunSpec

Provenance = Literal["measured", "simulated", "published"]
Role = Literal["arm", "control"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One line of a plan. A control repeats the baseline under its own name, to show what noise alone does."""

    label: str
    spec: RunSpec
    spec_id: str
    role: Role = "arm"

    @property
    def key(self) -> str:
        """Identity inside a run: the spec, and whether this is its control."""
        return self.spec_id if self.role == "arm" else f"{self.spec_id}-{self.role}"


@dataclass(frozen=True, kw_only=True, slots=True)
class RoofSample:
    """The machine's limits next to a turn: read bandwidth in bytes/s, arithmetic peak in FLOP/s.

    `peak_flops` is None where `peak_isa` is `reference`: portable code has no peak worth comparing with.
    `ping_pong_ns` is the time a cache line takes from core to core (None with one core): it labels where a hypervisor
    has placed the cores at that moment.
    """

    read_bytes_per_s: float
    peak_flops: float | None
    peak_isa: str
    ping_pong_ns: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """What one step must do at least: weight bytes read once, floating-point operations, tokens put through."""

    weight_bytes: int
    flops: int
    tokens: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """One turn. `samples_s` holds the seconds of every timed step, never a mean; empty unless the outcome is timed.

    `error` is the relative Frobenius error of the expert outputs against the float32 reference on the very inputs,
    `sitting` names the worker process, `roofs` were sampled right before and right after the timed steps, `took_s` is
    the whole turn with warm-up and checks in seconds.
    """

    cell: str
    label: str
    round: int
    outcome: Outcome
    provenance: Provenance
    code_id: str
    env_id: str
    sitting: str
    started: str
    took_s: float = 0.0
    why: str = ""
    samples_s: tuple[float, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    error: float | None = None
    work: Work | None = None
    roofs: tuple[RoofSample, ...] = ()

    def __post_init__(self) -> None:
        if self.samples_s and not self.outcome.timed:
            raise ValueError(f"record {self.cell} round {self.round}: {self.outcome} must not hold samples")
        if self.outcome.timed and not self.samples_s:
            raise ValueError(f"record {self.cell} round {self.round}: {self.outcome} without samples")


@dataclass(frozen=True, kw_only=True, slots=True)
class Environment:
    """The machine and the code behind records: `facts` is plain content, shown in reports as it is."""

    env_id: str
    code_id: str
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Header:
    """First line of a run: what was planned and the command that planned it.

    `baseline` is the label of the arm to which the other arms of the same workload and model are compared.
    """

    run: str
    title: str
    ablation: str
    created: str
    command: tuple[str, ...]
    baseline: str
    cells: tuple[Cell, ...]
    measure: MeasureSpec
    code_id: str
    env_id: str
