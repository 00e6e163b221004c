"""From the answers in a run to its rows: one for each cell, with what its answers were worth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ktbench.report.accuracy.answers import Answers, Measure, answers_of, measures_of
from ktbench.report.accuracy.command import eval_command
from ktbench.report.accuracy.evidence import work_done
from ktbench.report.accuracy.results import Answered, Result
from ktbench.report.accuracy.subjects import AVERAGE, Subject, SubjectKind, subjects_of
from ktbench.results import Run
from ktbench.results.row import Row
from ktbench.results.rows import rows_of
from ktbench.spec.outcome import Outcome
from ktbench.spec.record import Provenance
from ktbench.spec.scored import SCORE, Asked
from ktbench.spec.suite import SuiteSpec

_KINDS: tuple[SubjectKind, ...] = ("category", "task")


@dataclass(frozen=True, kw_only=True, slots=True)
class AccuracyRow:
    """A cell and its answers. `row` has its label, its settings and, where it was timed too, its speed.

    The baseline of answers is one for a model, whatever the settings of `row`.

    `outcome` is None while tasks are open; `why` says of what is not OK the reason. `results` are of all subjects, the
    average first; `measures` of tasks whose answers are not graded. `ungraded` counts answers that cannot be graded
    here, and texts without a value, by task and reason; `ends` are those of its tasks by name.
    """

    row: Row
    is_baseline: bool
    outcome: Outcome | None
    why: str
    provenance: Provenance | None
    evidence: str
    command: str
    results: tuple[Result, ...]
    measures: tuple[Measure, ...]
    ungraded: Mapping[tuple[str, str], int]
    ends: Mapping[str, Asked]

    @property
    def has_values(self) -> bool:
        """Whether any answer of it was graded or measured."""
        return bool(self.measures) or any(one.score for one in self.results)

    def result(self, subject: str = AVERAGE, kind: SubjectKind = "average") -> Result | None:
        """The result of a subject; None where its tasks are not graded."""
        return next((one for one in self.results if (one.kind, one.subject) == (kind, subject)), None)


def accuracy_rows(run: Run) -> tuple[AccuracyRow, ...]:
    """Rows of `run`, a run of one part that asks a suite, in the order of the plan."""
    assert run.header.suite is not None, f"{run.header.run} asks no suite"
    cells, rows = _Cells.of(run, run.header.suite), rows_of(run)
    return tuple(_row(row, _baseline(row, rows), cells, run) for row in rows)


def _baseline(row: Row, rows: Sequence[Row]) -> Row | None:
    """The first cell of the baseline's arm with the same model: the model unmodified, at the first point of all axes.

    None where none was planned.
    """
    same = (other for other in rows if other.is_baseline and other.spec.model == row.spec.model)
    return next(same, None)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Cells:
    """What all cells of a run answered, by cell key and task."""

    suite: SuiteSpec
    subjects: tuple[Subject, ...]
    answers: Mapping[tuple[str, str], Answers]
    ends: Mapping[tuple[str, str], Asked]

    @classmethod
    def of(cls, run: Run, suite: SuiteSpec) -> _Cells:
        found = run.answers()
        graded = {task for (_, task), scored in found.items() if any(one.metric == SCORE for one in scored)}
        asked = {task.name for task in suite.tasks if not task.is_measured}
        open_ = asked - {task for (_, task), scored in found.items() if scored}
        return cls(
            suite=suite,
            subjects=subjects_of(suite, graded | open_),
            answers={where: answers_of(scored) for where, scored in found.items()},
            ends=run.ends(),
        )

    def of_cell(self, key: str) -> dict[str, Answers]:
        return {task.name: found for task in self.suite.tasks if (found := self.answers.get((key, task.name)))}

    def ends_of(self, key: str) -> dict[str, Asked]:
        return {task.name: end for task in self.suite.tasks if (end := self.ends.get((key, task.name)))}


def _row(row: Row, base: Row | None, cells: _Cells, run: Run) -> AccuracyRow:
    is_baseline = base is not None and row.cell == base.cell
    mine, ends = cells.of_cell(row.cell), cells.ends_of(row.cell)
    before = None if is_baseline else cells.of_cell(base.cell) if base else {}
    answered = Answered(suite=cells.suite, answers=mine, ends=ends, before=before)
    outcome, why = _ending(cells.suite, ends)
    return AccuracyRow(
        row=row,
        is_baseline=is_baseline,
        outcome=outcome,
        why=why,
        provenance=next((end.provenance for end in ends.values()), None),
        evidence=work_done(list(ends.values())),
        command=eval_command(row.spec, cells.suite, run.header.command),
        results=tuple(answered.result(subject) for subject in cells.subjects),
        measures=tuple(one for task in mine for one in measures_of(task, mine[task], (before or {}).get(task))),
        ungraded={(task, why): count for task in mine for why, count in mine[task].ungraded.items()},
        ends=ends,
    )


def _ending(suite: SuiteSpec, ends: Mapping[str, Asked]) -> tuple[Outcome | None, str]:
    """How a cell ended over all its tasks: one that failed decides, then one that is unsupported, then open ones."""
    failed = [end for end in ends.values() if not end.outcome.timed]
    if failed:
        first = next((end for end in failed if end.outcome is not Outcome.UNSUPPORTED), failed[0])
        alike = len(failed) == len(suite.tasks) and len({(end.outcome, end.why) for end in failed}) == 1
        return first.outcome, first.why if alike else f"{first.task}: {first.why}"
    if len(ends) < len(suite.tasks):
        return None, f"{len(ends)} of {len(suite.tasks)} tasks asked so far"
    return Outcome.OK, ""


def parts_of_average(rows: Sequence[AccuracyRow]) -> tuple[SubjectKind, tuple[str, ...]]:
    """What the average is shown by: its categories where each stands for several tasks, else its tasks.

    There are no names where the average is of one alone.
    """
    names = {kind: tuple(one.subject for one in rows[0].results if one.kind == kind) for kind in _KINDS}
    kind: SubjectKind = "category" if names["category"] and len(names["task"]) >= 2 * len(names["category"]) else "task"
    return kind, names[kind] if len(names[kind]) > 1 else ()
