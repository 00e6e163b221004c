"""Evaluates the cells of a plan on a suite: one process per set of weights, each task logged before the next."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean

from ktbench.results import Log, Run
from ktbench.results.find import RUNS
from ktbench.run.child import ChildFailed
from ktbench.run.eval_process import EvalProgress, EvalRequest, evaluate_in_subprocess, reference_file
from ktbench.run.progress import LoadingLine, cell_names, say
from ktbench.run.request import CellPlan
from ktbench.spec.cells import worker_groups
from ktbench.spec.errors import RequestError
from ktbench.spec.record import KL, SCORE, Cell, Environment, Outcome, Part, SampleResult, TaskResult
from ktbench.spec.suite import SuiteSpec, TaskSpec

_ANSWERS = RUNS / "answers"


@dataclass(frozen=True, kw_only=True, slots=True)
class EvalRunner:
    """Evaluates the cells of a plan on their open tasks and logs the results; `created` is the run's creation time."""

    suite: SuiteSpec
    planned: CellPlan
    parts: tuple[Part, ...]
    machine: Environment
    log: Log
    folder: Path
    created: str

    def run_all(self, previous: Run | None) -> None:
        """Run every task that the resumed run lacks. A crash fails the other tasks of the cell that caused it."""
        references = references_of(self.planned.here, self.parts)
        known = _Known(previous, self.folder)
        tasks = {cell.key: self._open(known, cell.key, references[cell.key]) for cell in self.planned.here}
        for cell in self.planned.here:
            if cell.key in self.planned.unsupported:
                self._set_aside(cell, tasks[cell.key], Outcome.UNSUPPORTED, self.planned.unsupported[cell.key])
        first = sorted(self.planned.runnable, key=lambda cell: references[cell.key] != cell.key)
        for group in worker_groups(first):
            self._run_group(group, {cell.key: tasks[cell.key] for cell in group}, references)

    def _open(self, known: _Known, cell: str, reference: str) -> tuple[str, ...]:
        return tuple(task.name for task in self.suite.tasks if not known.is_done(cell, task, reference))

    def _run_group(
        self, group: Sequence[Cell], tasks: dict[str, tuple[str, ...]], references: Mapping[str, str]
    ) -> None:
        names, done, line = cell_names(self.planned.cells), set[tuple[str, str]](), LoadingLine(sys.stderr)

        def on_progress(message: EvalProgress) -> None:
            if message.loading is not None:
                line.show(message.loading)
                return
            line.clear()
            result = message.result
            if result is None:
                say(message.doing)
                return
            done.add((result.cell, result.task))
            self.log.append(*message.samples, result)
            if missing := result.lm_eval.get("samples_missing"):
                say(f"  lm-eval's samples are not written: {missing}")
            say(f"  {names[result.cell]}  {result.task}  {result_text(result, message.samples)}")

        while left := [cell for cell in group if tasks[cell.key]]:
            try:
                evaluate_in_subprocess(self._request(left, tasks, references), on_progress)
                return
            except ChildFailed as error:
                tasks = {key: tuple(name for name in open_ if (key, name) not in done) for key, open_ in tasks.items()}
                lost = next((cell for cell in left if tasks[cell.key]), None)
                if lost is None:
                    return
                self._set_aside(lost, tasks[lost.key], error.outcome, str(error))
                tasks[lost.key] = ()

    def _request(
        self, cells: Sequence[Cell], tasks: Mapping[str, tuple[str, ...]], references: Mapping[str, str]
    ) -> EvalRequest:
        return EvalRequest(
            cells=tuple(cells),
            suite=self.suite,
            tasks={cell.key: tasks[cell.key] for cell in cells},
            references={cell.key: references[cell.key] for cell in cells},
            folder=str(self.folder),
            created=self.created,
            answers=str(_ANSWERS),
            code_id=self.machine.code_id,
            env_id=self.machine.env_id,
        )

    def _set_aside(self, cell: Cell, tasks: Sequence[str], outcome: Outcome, why: str) -> None:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        for task in tasks:
            result = TaskResult(
                cell=cell.key,
                label=cell.label,
                task=task,
                outcome=outcome,
                why=why,
                provenance="measured",
                code_id=self.machine.code_id,
                env_id=self.machine.env_id,
                started=now,
            )
            self.log.append(result)
        say(f"  {cell_names(self.planned.cells)[cell.key]}  {outcome}: {why}")


class _Known:
    """The results that a resumed run already has; none for a new run."""

    def __init__(self, previous: Run | None, folder: Path) -> None:
        self._ends = previous.ends() if previous else {}
        self._answers = previous.answers() if previous else {}
        self._folder = folder

    def is_done(self, cell: str, task: TaskSpec, reference: str) -> bool:
        """Whether a cell need not run a task: it ended well, and its predictions could be compared.

        Until the unmodified model has answered, the others have scores but no divergences.
        """
        if not self._ended_well(cell, task) or not task.is_compared:
            return self._ended_well(cell, task)
        is_kept = self._ended_well(reference, task) and reference_file(self._folder, reference, task.name).is_file()
        if cell == reference:
            return is_kept
        return self._has_divergences(cell, task) or (is_kept and not self._has_divergences(reference, task))

    def _ended_well(self, cell: str, task: TaskSpec) -> bool:
        end = self._ends.get((cell, task.name))
        return end is not None and end.outcome.timed

    def _has_divergences(self, cell: str, task: TaskSpec) -> bool:
        answers = self._answers.get((cell, task.name), ())
        return any(answer.metric == KL and answer.value is not None for answer in answers)


def references_of(cells: Sequence[Cell], parts: Sequence[Part]) -> dict[str, str]:
    """Cell key -> key of the baseline with the same model; a cell without a baseline is its own reference."""
    baselines = {part.name: part.baseline for part in parts}
    firsts: dict[tuple[str, str], str] = {}
    for cell in cells:
        if cell.label == baselines[cell.part]:
            firsts.setdefault((cell.part, cell.spec.model.name), cell.key)
    return {cell.key: firsts.get((cell.part, cell.spec.model.name), cell.key) for cell in cells}


def result_text(result: TaskResult, samples: Sequence[SampleResult]) -> str:
    """How a task ended in a few words: its mean score or measured values, and its duration."""
    if not result.outcome.timed:
        return f"{result.outcome}: {result.why}"
    cached = f", {result.cached} answers cached" if result.cached else ""
    return f"{', '.join(_means(samples))} ({result.questions} questions, {result.took_s:.1f} s{cached})"


def _means(samples: Sequence[SampleResult]) -> Iterator[str]:
    for metric in dict.fromkeys(sample.metric for sample in samples):
        known = [
            (sample.value, sample.weight) for sample in samples if sample.metric == metric and sample.value is not None
        ]
        if not known:
            yield "no answer can be graded here"
        elif metric == SCORE:
            yield f"{100 * fmean(value for value, _ in known):.1f}%"
        else:
            mean = fmean([value for value, _ in known], [weight for _, weight in known])
            yield f"{metric} {mean:.4g}"


def require_same_suite(run: Run, suite: SuiteSpec | None) -> None:
    """Raises RequestError if a resumed run was started with another suite."""
    if run.header.suite != suite:
        raise RequestError(
            f"resume: the suite of {run.header.run} is another one, {run.header.suite and run.header.suite.name}; "
            f"repeat the command it was started with: {' '.join(run.header.command)}"
        )
