"""Trainings that never ran: real objects through the real log, with losses that a test chooses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from ktbench.results import Run
from ktbench.spec.engine import EngineSpec
from ktbench.spec.record import Cell, HeldOut, Learning, Outcome, Part, Record, StepParts
from ktbench.spec.run_spec import MeasureSpec, ModelSpec, RunSpec, WorkloadSpec
from ktbench.spec.sweep import FigureKind, arm_features, arm_precision
from ktbench.spec.wire import spec_id
from tests.report.synthetic import CONFIG, blank, header_of, seen, written

STEPS = 20


@dataclass(frozen=True, kw_only=True)
class Taught:
    """An arm whose losses are `factor` times those of base; `after` is (held-out loss, exact) by seed.

    `fails` says why a seed ended without a loss.
    """

    label: str
    factor: float = 1.0
    after: Mapping[int, tuple[float, float]]
    fails: Mapping[int, str] = field(default_factory=dict)


BASE = Taught(label="base", after={0: (0.30, 0.75), 1: (0.34, 0.70), 2: (0.32, 0.72)})
ALIKE = Taught(label="+v+d int8", factor=1.002, after={0: (0.31, 0.74), 1: (0.33, 0.71), 2: (0.32, 0.73)})
WORSE = Taught(label="+v+d int4_g32", factor=1.2, after={0: (0.40, 0.60), 1: (0.45, 0.55), 2: (0.42, 0.58)})
BROKEN = Taught(
    label="+v+d", after={0: (0.31, 0.75), 1: (0.33, 0.7), 2: (0, 0)}, fails={2: "the loss of training step 7 is nan"}
)


@dataclass(frozen=True, kw_only=True)
class LearningStore:
    """What to write into a run folder: all arms at all seeds, one round of each."""

    arms: tuple[Taught, ...] = (BASE, ALIKE, WORSE)
    figure: FigureKind = "learning"
    run: str = "learned"

    def write(self, folder: Path) -> Run:
        """Write the run into a folder and read it back."""
        cells = [(self._cell(arm, seed), arm, seed) for seed in self.arms[0].after for arm in self.arms]
        part = Part(name="", title="What fine-tuning learns", baseline=self.arms[0].label, figure=self.figure)
        header = header_of(self.run, "sft_quality", (part,), tuple(cell for cell, _, _ in cells))
        measure = MeasureSpec(min_rounds=1, max_rounds=1)
        return written(folder, replace(header, measure=measure), [_record(*cell) for cell in cells])

    def _cell(self, arm: Taught, seed: int) -> Cell:
        work = WorkloadSpec(
            phase="train",
            prompt=25,
            steps=STEPS,
            batch=8,
            seed=seed,
            adapters="both",
            lora_rank=8,
            recompute=True,
            examples="evals/nano/rotate.jsonl",
        )
        precision = arm_precision(arm.label) or "bf16"
        spec = RunSpec(
            model=ModelSpec(name="nano", config=CONFIG, full_layers=4, full_vocab=12672, path="evals/nano"),
            workload=work,
            engine=EngineSpec(**arm_features(arm.label)),  # type: ignore[arg-type]
            measure=MeasureSpec(min_rounds=1, max_rounds=1),
            precision=precision,
        )
        return Cell(label=arm.label, spec=spec, spec_id=spec_id(spec))


def losses(arm: Taught, seed: int) -> Iterator[float]:
    """Falling, other batches in each seed."""
    for step in range(STEPS):
        yield round(arm.factor * (8.0 / (1 + step) + 0.2 + 0.01 * ((7 * step + 3 * seed) % 5)), 6)


def _record(cell: Cell, arm: Taught, seed: int) -> Record:
    if seed in arm.fails:
        return replace(blank(cell, 0), outcome=Outcome.WRONG, why=arm.fails[seed])
    loss, exact = arm.after[seed]
    before = HeldOut(loss=8.5, exact=0.0, examples=138)
    return replace(
        blank(cell, 0),
        outcome=Outcome.OK,
        took_s=30.0,
        samples_s=(0.25,) * STEPS,
        evidence=seen(cell.spec, 128 * STEPS),
        error=0.0031,
        parts=StepParts(forward_s=1.5, backward_s=3.0, optimiser_s=0.1, losses=tuple(losses(arm, seed))),
        learning=Learning(before=before, after=HeldOut(loss=loss, exact=exact, examples=138)),
    )
