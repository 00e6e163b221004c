"""Runs whose cells answered questions that nobody asked: real objects, real logs, scores that a test chooses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

from ktbench.results import Log, Run, read_run
from ktbench.results.accuracy import AccuracyRow, accuracy_rows
from ktbench.spec.engine import EngineSpec
from ktbench.spec.features import Phase
from ktbench.spec.record import KL, SCORE, Cell, Outcome, Part, Record, SampleResult, TaskResult, Work
from ktbench.spec.run_spec import ModelSpec, RunSpec, WorkloadSpec
from ktbench.spec.suite import SuiteSpec, TaskSpec
from ktbench.spec.sweep import FigureKind, arm_changes
from ktbench.spec.weights import Precision
from ktbench.spec.wire import spec_id
from tests.report.synthetic import CONFIG, MACHINE, STARTED, blank, header_of, seen, written

CATEGORIES = ("coding", "data_analysis", "instruction_following", "language", "math", "reasoning")
NANO = SuiteSpec(
    name="nano",
    title="nano, generated tasks",
    tasks=tuple(
        TaskSpec(name=f"{category}_{n}", source=f"nano/{category}_{n}", category=category, max_new_tokens=32)
        for category in CATEGORIES
        for n in (1, 2)
    ),
    limit=60,
)
FOUR = replace(NANO, tasks=NANO.tasks[:4])  # in two categories
TABLE2 = SuiteSpec(
    name="table2",
    title="KTransformers (SOSP'25), Table 2",
    tasks=(
        TaskSpec(name="humaneval", source="humaneval", category="coding", samples=10, temperature=0.3, top_p=0.95),
        TaskSpec(name="mbpp", source="paper/mbpp", category="coding", shots=3),
        TaskSpec(name="gsm8k", source="paper/gsm8k", category="math", shots=8),
        TaskSpec(name="strategyqa", source="strategyqa", category="reasoning", shots=4),
    ),
    average="tasks",
)
DRIFT = SuiteSpec(
    name="drift",
    title="drift from the unmodified model",
    tasks=(TaskSpec(name="decode", source="drift/decode"), TaskSpec(name="prefill", source="drift/prefill")),
    average="tasks",
)


@dataclass(frozen=True, kw_only=True)
class Answering:
    """An arm: how likely it is to lose a right answer and to gain a wrong one, how much longer it answers.

    In categories of `hard` it loses so many times as often. Tasks in `ends` end otherwise; `slower` is its step in ms.
    """

    label: str
    loses: float = 0.0
    gains: float = 0.0
    longer: float = 1.0
    hard: dict[str, float] = field(default_factory=dict)
    ends: dict[str, tuple[Outcome, str]] = field(default_factory=dict)
    open: tuple[str, ...] = ()
    step_ms: float = 10.0


def deferring(count: int) -> Answering:
    """As the paper finds: next to nothing up to six of eight."""
    return Answering(
        label=f"+v+d deferral={count}", loses=0.004 * count + 0.02 * max(0, count - 6), gains=0.002 * count
    )


def skipping(count: int) -> Answering:
    """As the paper finds: ever more from three of eight."""
    loses = min(1.0, 0.012 * max(0, count - 2) ** 2.4)
    return Answering(label=f"+v+d skipping={count}", loses=loses, hard={"coding": 1.5}, longer=1 + 0.02 * count)


BASE = Answering(label="+v+d")
FIG13 = (BASE, *map(deferring, range(1, 9)), *map(skipping, range(1, 9)))


@dataclass(frozen=True, kw_only=True)
class AnswerStore:
    """What to write into a run folder: all arms at all precisions, each asked `questions` of every task."""

    arms: tuple[Answering, ...] = FIG13
    suite: SuiteSpec = NANO
    figure: FigureKind = "deferral_accuracy"
    baseline: str = "+v+d"
    formats: tuple[tuple[Precision, Precision], ...] = (("bf16", "bf16"),)
    published: tuple[str, ...] = ()
    questions: int = 60
    right: float = 0.93
    partial: bool = False
    phases: tuple[Phase, ...] = ("decode",)
    timed: int = 0
    title: str = "Accuracy with deferred and with skipped experts"
    run: str = "accuracy"
    command: tuple[str, ...] = ("python", "-m", "ktbench", "eval", "+ablation=accuracy_deferral", "limit=60")

    @cached_property
    def cells(self) -> tuple[Cell, ...]:
        every = product(self.phases, self.formats, self.arms)
        return tuple(self._cell(arm.label, *formats, phase) for phase, formats, arm in every)

    def _cell(self, label: str, precision: Precision, device: Precision, phase: Phase) -> Cell:
        changes: dict[str, Any] = arm_changes(label)
        engine = {key.removeprefix("engine."): value for key, value in changes.items() if key.startswith("engine.")}
        spec = RunSpec(
            model=ModelSpec(
                name="nano", config=CONFIG, full_layers=4, full_vocab=CONFIG["vocab_size"], path="evals/nano"
            ),
            workload=WorkloadSpec(phase=phase, prompt=64, steps=16),
            engine=EngineSpec(**engine),
            precision=changes.get("precision", precision),
            device_precision=device,
        )
        return Cell(label=label, spec=spec, spec_id=spec_id(spec))

    def write(self, folder: Path) -> Run:
        """Write the run into a folder and read it back."""
        part = Part(name="", title=self.title, baseline=self.baseline, figure=self.figure, published=self.published)
        header = header_of(self.run, self.run, (part,), self.cells)
        return written(folder, replace(header, command=self.command, suite=self.suite), self.facts())

    def facts(self) -> Iterator[SampleResult | TaskResult | Record]:
        arms = {arm.label: arm for arm in self.arms}
        for cell in self.cells:
            arm = arms[cell.label]
            for task in self.suite.tasks:
                if task.name in arm.open:
                    continue
                outcome, why = arm.ends.get(task.name, arm.ends.get("", (Outcome.OK, "")))
                if outcome.timed:
                    yield from self._answers(cell, arm, task)
                yield self._end(cell, task, outcome, why)
            yield from (self._record(cell, arm, number) for number in range(self.timed))

    def _answers(self, cell: Cell, arm: Answering, task: TaskSpec) -> Iterator[SampleResult]:
        loses = (arm.loses + _LOSS[cell.spec.precision] + _LOSS[cell.spec.device_precision]) * arm.hard.get(
            task.category, 1.0
        )
        for number in range(self.questions):
            question = f"{task.name}/{number}"
            for sample in range(task.samples):
                value = self._value(question, sample, cell, loses, arm.gains)
                tokens = round((8 + number % 7) * arm.longer)
                yield SampleResult(
                    cell=cell.key, task=task.name, question=question, value=value, sample=sample, tokens=tokens
                )
            if task.is_compared:
                yield self._divergence(cell, task, question, loses)

    def _divergence(self, cell: Cell, task: TaskSpec, question: str, loses: float) -> SampleResult:
        """Of the baseline none; it grows with what an arm loses, and is seen where nothing is lost."""
        drift = 0.0 if cell == self.cells[0] else (0.001 + loses) * (0.2 + 0.1 * Random(question).random())
        return SampleResult(
            cell=cell.key, task=task.name, question=question, metric=KL, value=round(drift, 6), weight=9.0
        )

    def _value(self, question: str, sample: int, cell: Cell, loses: float, gains: float) -> float:
        """The same questions are hard for all; an arm flips some of them, those of its own."""
        rng, own = Random(f"{question}/{sample}"), Random(f"{question}/{sample}/{cell.key}")
        right, credit, roll = rng.random() < self.right, rng.random(), own.random()
        right = roll >= loses if right else roll < gains
        return (0.5 + 0.5 * credit if right else 0.3 * credit) if self.partial else float(right)

    def _end(self, cell: Cell, task: TaskSpec, outcome: Outcome, why: str) -> TaskResult:
        return TaskResult(
            cell=cell.key,
            label=cell.label,
            task=task.name,
            outcome=outcome,
            why=why,
            provenance="measured",
            code_id=MACHINE.code_id,
            env_id=MACHINE.env_id,
            started=STARTED,
            took_s=3.0,
            questions=self.questions,
            requests=self.questions * task.samples,
            evidence=seen(cell.spec, 1000) if outcome.timed else (),
        )

    def _record(self, cell: Cell, arm: Answering, number: int) -> Record:
        bits = {"bf16": 16, "int8": 8, "int4_g32": 4.5, "q8_0": 8.5, "q4_0": 4.5}
        faster = (bits[cell.spec.precision] + bits[cell.spec.device_precision]) / 32
        step_s = round(arm.step_ms * (0.4 + 0.6 * faster) * (1 + 0.004 * (number % 3)) / 1e3, 7)
        return replace(
            blank(cell, number),
            outcome=Outcome.OK,
            took_s=2.0,
            samples_s=(step_s,) * 4,
            evidence=seen(cell.spec, 100),
            error=0.003,
            work=Work(weight_bytes=10**7, flops=10**7, tokens=1),
        )


# How likely a format loses a right answer.
_LOSS = {"bf16": 0.0, "int8": 0.002, "q8_0": 0.001, "int4_g32": 0.03, "q4_0": 0.05}


@dataclass(frozen=True, kw_only=True)
class DriftStore(AnswerStore):
    """Of documents of unlike length: losses, divergences and agreement that grow with what an arm loses."""

    suite: SuiteSpec = DRIFT
    questions: int = 12
    title: str = "Drift with deferred and with skipped experts"
    run: str = "drift"

    def _answers(self, cell: Cell, arm: Answering, task: TaskSpec) -> Iterator[SampleResult]:
        for number in range(self.questions):
            rng = Random(f"{number}")
            loss, tokens = 1.2 + 0.4 * rng.random(), float(40 + 10 * number)
            drift = (arm.loses + _LOSS[cell.spec.precision]) * (0.8 + 0.4 * rng.random())
            values = {"nll_nats": loss + drift, "kl_nats": drift, "top1": 1 - min(1.0, 2 * drift)}
            for metric, value in values.items():
                yield SampleResult(
                    cell=cell.key,
                    task=task.name,
                    question=f"text {number}",
                    value=round(value, 6),
                    metric=metric,
                    weight=tokens,
                )


FRONTIER = AnswerStore(
    arms=(
        replace(BASE, label="+v+d+l", step_ms=9.0),
        *(replace(deferring(n), label=f"+v+d+l deferral={n}", step_ms=9.0 - 0.35 * n) for n in range(1, 9)),
    ),
    baseline="+v+d+l",
    figure="frontier",
    formats=(("bf16", "bf16"), ("int8", "int8"), ("int4_g32", "int4_g32")),
    timed=6,
    title="Speed against accuracy",
    run="frontier",
    command=("python", "-m", "ktbench", "eval", "+ablation=frontier"),
)
FORMATS = DriftStore(
    arms=(replace(BASE, label="+v+d+l"),),
    baseline="+v+d+l",
    figure="frontier",
    phases=("prefill", "decode"),
    formats=(("bf16", "bf16"), ("int8", "bf16"), ("q8_0", "bf16"), ("int4_g32", "bf16"), ("q4_0", "bf16")),
    timed=6,
    title="Formats of weights",
    run="formats",
    command=("python", "-m", "ktbench", "eval", "+ablation=formats"),
)
PRECISION = AnswerStore(
    arms=(replace(BASE, label="+v+d+l"),),
    baseline="+v+d+l",
    figure="precision_accuracy",
    formats=tuple(product(("bf16", "int8", "int4_g32", "q8_0", "q4_0"), ("bf16", "int8", "int4_g32"))),
    title="Accuracy of formats",
    run="precision",
    command=("python", "-m", "ktbench", "eval", "+ablation=accuracy_precision"),
)
SHARED_TABLE2 = AnswerStore(
    arms=(BASE, deferring(6)),
    suite=TABLE2,
    figure="accuracy",
    published=("table2",),
    title="Accuracy with Expert Deferral, Table 2",
    run="table2",
    command=("python", "-m", "ktbench", "eval", "+ablation=accuracy_table2"),
)


SMALL = AnswerStore(arms=(BASE, deferring(2), skipping(6)), questions=12)


def row_of(run: Run, label: str) -> AccuracyRow:
    return next(row for row in accuracy_rows(run) if row.row.label == label)


def told(run: Run, *facts: SampleResult) -> Run:
    """The run with further answers in its log."""
    log = Log(run.folder)
    log.append(*facts)
    log.close()
    return read_run(run.folder)


def scores_of(run: Run, label: str) -> dict[str, dict[str, float]]:
    """Scores by task and question straight from the log."""
    cell = next(cell for cell in run.header.cells if cell.label == label)
    found: dict[str, dict[str, float]] = {}
    for one in run.sample_results:
        if one.cell == cell.key and one.metric == SCORE and one.value is not None:
            found.setdefault(one.task, {})[one.question] = one.value
    return found
