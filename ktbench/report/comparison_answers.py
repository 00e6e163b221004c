"""Answers of two runs to the same questions, held against each other in pairs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ktbench.report.accuracy.answers import answers_of
from ktbench.report.accuracy.subjects import Subject, SubjectKind, shares_of, subjects_of
from ktbench.results import Run
from ktbench.results.row import Row
from ktbench.results.scores import Change, Pair, change_of, pairs_of
from ktbench.spec.suite import SuiteSpec

# Scores by question, of each (cell key, task).
_Scores = Mapping[tuple[str, str], Mapping[str, float]]


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparedAnswers:
    """What became of a cell's score on a subject, over the `questions` that both runs answered.

    `change` is that from the first run to the second; None with the reason `why`.
    """

    name: str
    kind: SubjectKind
    subject: str
    questions: int
    change: Change | None
    why: str


def compared_answers(
    before: Run, after: Run, pairs: Sequence[tuple[Row, Row]], names: Mapping[str, str]
) -> Iterator[ComparedAnswers]:
    """Cells of both runs on the average of all graded tasks, then on each task where there are several.

    `names` are by cell key. Nothing where one of the runs asked no questions.
    """
    there, here = before.header.suite, after.header.suite
    if there is None or here is None:
        return
    mine, theirs = _scores(before), _scores(after)
    for subject in _subjects(there, {task for _, task in (*mine, *theirs)}):
        why = _asked_otherwise(there, here, subject)
        for one, other in pairs:
            found = {} if why else _pairs(subject, mine, one.cell, theirs, other.cell)
            yield _compared(names[one.cell], subject, there, found, why)


def _scores(run: Run) -> _Scores:
    found = {where: answers_of(scored).scores for where, scored in run.answers().items()}
    return {where: scores for where, scores in found.items() if scores}


def _subjects(suite: SuiteSpec, graded: set[str]) -> Iterator[Subject]:
    found = subjects_of(suite, graded)
    alone = len(found) > 0 and len(found[0].tasks) == 1
    yield from (subject for subject in found if subject.kind != "category" and not (alone and subject.kind == "task"))


def _asked_otherwise(there: SuiteSpec, here: SuiteSpec, subject: Subject) -> str:
    """Why answers are to other questions although these are called the same; empty where they are not."""
    if (there.chat, there.release) != (here.chat, here.release):
        return "the suites put their questions in different ways (chat, release)"
    asked = {task.name: task for task in here.tasks}
    other = [task.name for task in subject.tasks if asked.get(task.name, task) != task]
    return f"{other[0]} is set otherwise in the second run" if other else ""


def _pairs(subject: Subject, mine: _Scores, one: str, theirs: _Scores, other: str) -> dict[str, tuple[Pair, ...]]:
    """Scores of the questions that both answered, by task."""
    tasks = (task.name for task in subject.tasks)
    return {task: pairs_of(mine.get((one, task), {}), theirs.get((other, task), {})) for task in tasks}


def _compared(
    name: str, subject: Subject, suite: SuiteSpec, pairs: Mapping[str, Sequence[Pair]], why: str
) -> ComparedAnswers:
    lacking = [task for task, found in pairs.items() if not found]
    why = why or (f"no question of {lacking[0]} is answered in both" if lacking else "")
    shares = {} if why else shares_of(subject, suite, {task: len(found) for task, found in pairs.items()})
    return ComparedAnswers(
        name=name,
        kind=subject.kind,
        subject=subject.name,
        questions=sum(map(len, pairs.values())),
        change=change_of([(share, pairs[task]) for task, share in shares.items()]) if shares else None,
        why=why,
    )
