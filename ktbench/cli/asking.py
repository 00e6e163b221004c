"""Has the cells of a plan answer a suite: one process for each set of weights, every task on disk before the next."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean

from ktbench.cli.names import cell_names
from ktbench.cli.progress import say
from ktbench.cli.request import Planned
from ktbench.results import Log, Run
from ktbench.results.find import RUNS
from ktbench.run.answering import Asking, Said, answer_apart, reference_file
from ktbench.run.apart import ChildFailed
from ktbench.spec.cells import worker_groups
from ktbench.spec.errors import RequestError
from ktbench.spec.record import SCORE, Cell, Environment, Outcome, Part, SampleResult, TaskResult
from ktbench.spec.suite import SuiteSpec, TaskSpec

_ANSWERS = RUNS / "answers"


@dataclass(frozen=True, kw_only=True, slots=True)
class Examiner:
    """Asks the cells of a plan what is open, and keeps what they say in the log of a run."""

    suite: SuiteSpec
    planned: Planned
    parts: tuple[Part, ...]
    machine: Environment
    log: Log
    folder: Path

    def ask_all(self, previous: Run | None) -> None:
        """Ask every task that the resumed run does not have. A crash costs the cell that caused it its other tasks."""
        ends = previous.ends() if previous else {}
        references = references_of(self.planned.here, self.parts)
        tasks = {cell.key: self._open(cell, ends, references[cell.key]) for cell in self.planned.here}
        for cell in self.planned.here:
            if cell.key in self.planned.lacking:
                self._set_aside(cell, tasks[cell.key], Outcome.UNSUPPORTED, self.planned.lacking[cell.key])
        first = sorted(self.planned.runnable, key=lambda cell: references[cell.key] != cell.key)
        for group in worker_groups(first):
            self._ask_group(group, {cell.key: tasks[cell.key] for cell in group}, references)

    def _open(self, cell: Cell, ends: Mapping[tuple[str, str], TaskResult], reference: str) -> tuple[str, ...]:
        """Tasks that have not ended well, and those whose predictions others need and that are gone."""

        def done(task: TaskSpec) -> bool:
            end = ends.get((cell.key, task.name))
            lost = (
                task.is_drift
                and reference == cell.key
                and not reference_file(self.folder, cell.key, task.name).is_file()
            )
            return end is not None and end.outcome.timed and not lost

        return tuple(task.name for task in self.suite.tasks if not done(task))

    def _ask_group(
        self, group: Sequence[Cell], tasks: dict[str, tuple[str, ...]], references: Mapping[str, str]
    ) -> None:
        names, asked = cell_names(self.planned.cells), set[tuple[str, str]]()

        def heard(said: Said) -> None:
            if said.asked is None:
                say(said.doing)
                return
            asked.add((said.asked.cell, said.asked.task))
            self.log.append(*said.scored, said.asked)
            say(f"  {names[said.asked.cell]}  {said.asked.task}  {told(said.asked, said.scored)}")

        while left := [cell for cell in group if tasks[cell.key]]:
            try:
                answer_apart(self._asking(left, tasks, references), heard)
                return
            except ChildFailed as error:
                tasks = {key: tuple(name for name in open_ if (key, name) not in asked) for key, open_ in tasks.items()}
                lost = next((cell for cell in left if tasks[cell.key]), None)
                if lost is None:
                    return
                self._set_aside(lost, tasks[lost.key], error.outcome, str(error))
                tasks[lost.key] = ()

    def _asking(
        self, cells: Sequence[Cell], tasks: Mapping[str, tuple[str, ...]], references: Mapping[str, str]
    ) -> Asking:
        return Asking(
            cells=tuple(cells),
            suite=self.suite,
            tasks={cell.key: tasks[cell.key] for cell in cells},
            references={cell.key: references[cell.key] for cell in cells},
            folder=str(self.folder),
            answers=str(_ANSWERS),
            code_id=self.machine.code_id,
            env_id=self.machine.env_id,
        )

    def _set_aside(self, cell: Cell, tasks: Sequence[str], outcome: Outcome, why: str) -> None:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        for task in tasks:
            asked = TaskResult(
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
            self.log.append(asked)
        say(f"  {cell_names(self.planned.cells)[cell.key]}  {outcome}: {why}")


def references_of(cells: Sequence[Cell], parts: Sequence[Part]) -> dict[str, str]:
    """By cell key the baseline with the same model that a cell is compared with; a cell without one is its own."""
    baselines = {part.name: part.baseline for part in parts}
    firsts: dict[tuple[str, str], str] = {}
    for cell in cells:
        if cell.label == baselines[cell.part]:
            firsts.setdefault((cell.part, cell.spec.model.name), cell.key)
    return {cell.key: firsts.get((cell.part, cell.spec.model.name), cell.key) for cell in cells}


def told(asked: TaskResult, scored: Sequence[SampleResult]) -> str:
    """How a task ended in a few words: its mean score, or what was measured, and how long it took."""
    if not asked.outcome.timed:
        return f"{asked.outcome}: {asked.why}"
    again = f", {asked.cached} answers known" if asked.cached else ""
    return f"{', '.join(_means(scored))} ({asked.questions} questions, {asked.took_s:.1f} s{again})"


def _means(scored: Sequence[SampleResult]) -> Iterator[str]:
    for metric in dict.fromkeys(one.metric for one in scored):
        known = [(one.value, one.weight) for one in scored if one.metric == metric and one.value is not None]
        if not known:
            yield "nothing that can be graded here"
        elif metric == SCORE:
            yield f"{100 * fmean(value for value, _ in known):.1f}%"
        else:
            mean = fmean([value for value, _ in known], [weight for _, weight in known])
            yield f"{metric} {mean:.4g}"


def require_same_suite(run: Run, suite: SuiteSpec | None) -> None:
    """Raises RequestError where a run that is resumed asked something else."""
    if run.header.suite != suite:
        raise RequestError(
            f"resume: {run.header.run} asked {run.header.suite.name if run.header.suite else 'nothing'} otherwise; "
            f"repeat the command it was started with: {' '.join(run.header.command)}"
        )
