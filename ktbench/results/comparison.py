"""Two runs joined cell by cell: the speed-up of each cell in the second, and whether it is a change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from ktbench.results.answers import Subject, SubjectKind, TaskAnswers, answers_of, paired, shares_of, subjects_of
from ktbench.results.between_runs import (
    RoofRatio,
    RunSpeedup,
    noise_by_cell,
    roof_ratio,
    rounds_in_turns,
    speedup_between,
    widest,
)
from ktbench.results.intervals import Interval
from ktbench.results.row import Row, place
from ktbench.results.rows import rows_of
from ktbench.results.run import Run
from ktbench.results.scores import Change, Pair, ScoreVerdict, change_of
from ktbench.results.settings import varying
from ktbench.results.speedups import Verdict, judge
from ktbench.spec.suite import SuiteSpec


def joined(before: Sequence[Row], after: Sequence[Row]) -> tuple[tuple[Row, Row], ...]:
    """Rows of equal spec, part and role, in the order of the first run.

    Where parts are called otherwise, as in a sweep that is a part of another, a spec that both runs have left only once
    joins by itself.
    """
    there, here = ({row.cell: row for row in rows} for rows in (before, after))
    left = _once([row for row in after if row.cell not in there])
    alone = _once([row for row in before if row.cell not in here])
    pairs = (
        (row, here.get(row.cell) or (left.get(_request_of(row)) if _request_of(row) in alone else None))
        for row in before
    )
    return tuple((row, other) for row, other in pairs if other)


def _once(rows: Sequence[Row]) -> dict[tuple[str, str], Row]:
    """Rows whose spec no other row has, by spec and role."""
    counts = Counter(map(_request_of, rows))
    return {_request_of(row): row for row in rows if counts[_request_of(row)] == 1}


def _request_of(row: Row) -> tuple[str, str]:
    return row.spec_id, row.role


def names_of(rows: Sequence[Row]) -> dict[str, str]:
    """What cells of one or of several runs are called, by key: part, label, and the settings that vary."""
    settings = varying(row.settings for row in rows)
    several = len({row.part for row in rows}) > 1
    return {row.cell: f"{row.part} {place(row, settings)}".strip() if several else place(row, settings) for row in rows}


TOLERANCE = 0.03
_MACHINE_TOO = "the machine's own roof moved the same way and as much: it may be all that changed"


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparedCell:
    """A cell of both runs. `held` is None where not both have timed it; `why` says so, or what to doubt.

    `roof` is what the machine itself did next to its trials.
    """

    name: str
    before: Row
    after: Row
    held: RunSpeedup | None = None
    verdict: Verdict = Verdict.UNSURE
    roof: RoofRatio | None = None
    why: str = ""

    @property
    def is_control(self) -> bool:
        """Whether it is the baseline a second time, which shows noise and is no finding."""
        return self.after.role == "control"

    @property
    def machine_too(self) -> bool:
        """Whether the machine changed the same way as the cell and as much, so that it may be all that changed."""
        return self.why == _MACHINE_TOO


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Run `after` held against run `before`, with all rows of both. Cells of one run alone are there by name.

    `in_turns` says whether rounds of both were measured next to each other on a machine of both. A change within
    `tolerance` is none. `lost` says of each cell that A has a time or answers of how it ended in B, which has neither;
    `unjudged` why there is no verdict on a cell that both have. Both are by name, without controls.
    """

    before: Run
    after: Run
    before_rows: tuple[Row, ...]
    after_rows: tuple[Row, ...]
    tolerance: float
    in_turns: bool
    cells: tuple[ComparedCell, ...]
    only_before: tuple[str, ...]
    only_after: tuple[str, ...]
    answers: tuple[ComparedAnswers, ...]
    lost: Mapping[str, str]
    unjudged: Mapping[str, str]
    is_empty: bool

    @property
    def is_worse(self) -> bool:
        """Whether any cell but controls is slower, or scores lower on average."""
        lower = (
            one.change and one.change.verdict is ScoreVerdict.LOWER for one in self.answers if one.kind == "average"
        )
        return self.verdicts[Verdict.SLOWER] > 0 or any(lower)

    @property
    def verdicts(self) -> Counter[Verdict]:
        """How many of the cells that both runs have timed, without controls, have which verdict."""
        return Counter(cell.verdict for cell in self.cells if cell.held and not cell.is_control)


def compare_runs(
    before: Run, after: Run, tolerance: float = TOLERANCE, *, different_machines: bool = False
) -> Comparison:
    """Join two runs by the specs of their cells and compare the cells of both.

    A cell that no machine timed in both has a ratio where `different_machines` are meant.
    """
    there, here = rows_of(before), rows_of(after)
    pairs, names = joined(there, here), names_of([*there, *here])
    noise, noise_here = noise_by_cell(there), noise_by_cell(here)
    in_turns = rounds_in_turns(before, after) if before.measured_on() & after.measured_on() else frozenset()
    cells = []
    for one, other in pairs:
        differ = widest(noise.get(one.cell), noise_here.get(other.cell)) if one.role == "arm" else None
        cell = ComparedCell(name=names[one.cell], before=one, after=other)
        timed = one.timed and other.timed
        found = speedup_between(one, other, in_turns=in_turns, different_machines=different_machines) if timed else None
        cells.append(_compared_cell(cell, found, differ, tolerance))
    joined_keys = {row.cell for pair in pairs for row in pair}
    graded, graded_here = _graded(before), _graded(after)
    known = [row for row in there if row.role == "arm" and (row.timed or row.cell in graded)]
    answers = tuple(compared_answers(before, after, pairs, names))
    lost = dict(_lost(known, pairs, graded_here, names))
    judged = {names[row.cell] for row in known} - lost.keys()
    return Comparison(
        before=before,
        after=after,
        before_rows=there,
        after_rows=here,
        tolerance=tolerance,
        in_turns=bool(in_turns),
        cells=tuple(cells),
        only_before=tuple(names[row.cell] for row in there if row.cell not in joined_keys),
        only_after=tuple(names[row.cell] for row in here if row.cell not in joined_keys),
        answers=answers,
        lost=lost,
        unjudged={name: why for name, why in _unjudged(cells, answers, tolerance) if name in judged},
        is_empty=not known,
    )


def _graded(run: Run) -> set[str]:
    """Keys of the cells of which there are graded answers."""
    return {cell for cell, _ in _answers(run)}


def _lost(
    known: Sequence[Row], pairs: Sequence[tuple[Row, Row]], graded: Set[str], names: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """Rows of the first run that the second has no time of, or no answers where the first has no more than these."""
    after = {row.cell: other for row, other in pairs}
    for row in known:
        other = after.get(row.cell)
        if other is None:
            yield names[row.cell], "is not a cell of B"
        elif row.timed and not other.timed:
            yield names[row.cell], other.ending
        elif not row.timed and other.cell not in graded:
            yield names[row.cell], "gave no graded answers in B"


def _unjudged(
    cells: Sequence[ComparedCell], answers: Sequence[ComparedAnswers], tolerance: float
) -> Iterator[tuple[str, str]]:
    """Cells in too few comparable rounds, or that may be slower than tolerated; those with answers to other questions.

    What is unsure passes where its whole interval is above that: it is not slower, whether or not it is faster.
    """
    for cell in cells:
        if cell.held is None:
            continue
        speedup = cell.held.speedup
        if speedup is None or not speedup.sound:
            yield cell.name, cell.held.why
        elif cell.verdict is Verdict.UNSURE and speedup.low < 1 / (1 + tolerance):
            yield cell.name, f"may take {1 / speedup.low - 1:.0%} longer, {tolerance:.0%} are tolerated"
    yield from ((one.name, one.why) for one in answers if one.kind == "average" and one.change is None)


def _compared_cell(
    cell: ComparedCell, found: RunSpeedup | None, noise: Interval | None, tolerance: float
) -> ComparedCell:
    if found is None:
        return replace(cell, why=_untimed(cell))
    found = replace(found, speedup=found.speedup and found.speedup.with_spread(noise))
    verdict, roof = judge(found.speedup, tolerance), roof_ratio(cell.before, cell.after)
    doubt = found.why or (_MACHINE_TOO if _moves_with_roof(found.speedup, verdict, roof, tolerance) else "")
    return replace(cell, held=found, verdict=verdict, roof=roof, why=doubt)


def _untimed(cell: ComparedCell) -> str:
    """How the cell ended where it has no time."""
    ends = {name: row for name, row in (("A", cell.before), ("B", cell.after)) if not row.timed}
    endings = {name: row.ending for name, row in ends.items()}
    if len(set(endings.values())) == 1 and len(endings) == 2:
        return f"in both {endings['A']}"
    return "; ".join(f"in {name} {text}" for name, text in endings.items())


def _moves_with_roof(speedup: Interval | None, verdict: Verdict, roof: RoofRatio | None, tolerance: float) -> bool:
    if speedup is None or roof is None or not roof.is_beyond(tolerance):
        return False
    slower = verdict is Verdict.SLOWER and roof.ratio <= speedup.high
    return slower or (verdict is Verdict.FASTER and roof.ratio >= speedup.low)


# Of each (cell key, task) that has scores.
_Answers = Mapping[tuple[str, str], TaskAnswers]


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

    `names` are by cell key. Nothing where one of the runs evaluates no suite.
    """
    there, here = before.header.suite, after.header.suite
    if there is None or here is None:
        return
    mine, theirs = _answers(before), _answers(after)
    for subject in _subjects(there, {task for _, task in (*mine, *theirs)}):
        why = _different_questions(there, here, subject)
        for one, other in pairs:
            found = {} if why else _pairs(subject, mine, one.cell, theirs, other.cell)
            yield _compared_answers(names[one.cell], subject, there, found, why)


def _answers(run: Run) -> _Answers:
    found = {where: answers_of(scored) for where, scored in run.answers().items()}
    return {where: answers for where, answers in found.items() if answers.scores}


def _subjects(suite: SuiteSpec, graded: set[str]) -> Iterator[Subject]:
    found = subjects_of(suite, graded)
    alone = len(found) > 0 and len(found[0].tasks) == 1
    yield from (subject for subject in found if subject.kind != "category" and not (alone and subject.kind == "task"))


def _different_questions(there: SuiteSpec, here: SuiteSpec, subject: Subject) -> str:
    """Why answers are to other questions although these are called the same; empty where they are not."""
    if (there.chat, there.release) != (here.chat, here.release):
        return "the suites put their questions in different ways (chat, release)"
    tasks = {task.name: task for task in here.tasks}
    other = [task.name for task in subject.tasks if tasks.get(task.name, task) != task]
    if other:
        return f"{other[0]} is set otherwise in the second run"
    made = [task.name for task in subject.tasks if task.source.startswith("nano/")]
    if made and there.seed != here.seed:
        return f"questions of {made[0]} are other ones in the second run (seed)"
    # lm-eval draws worked examples from one sequence of random numbers, question after question.
    shown = [task.name for task in subject.tasks if task.shots]
    if shown and (there.limit, there.seed) != (here.limit, here.seed):
        return f"questions of {shown[0]} have other worked examples in the second run (limit, seed)"
    return ""


def _pairs(subject: Subject, mine: _Answers, one: str, theirs: _Answers, other: str) -> dict[str, tuple[Pair, ...]]:
    """Scores of the questions that both answered, by task."""
    tasks = (task.name for task in subject.tasks)
    return {task: paired(mine.get((one, task)), theirs.get((other, task))) for task in tasks}


def _compared_answers(
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
