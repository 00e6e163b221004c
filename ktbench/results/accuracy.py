"""Rows of a run that evaluates a suite: scores of each cell by task, category and on average, and their changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from statistics import fmean
from typing import Literal

from ktbench.results.answers import (
    AVERAGE,
    Measure,
    Subject,
    SubjectKind,
    TaskAnswers,
    answers_of,
    divergence_of,
    measures_of,
    paired,
    shares_of,
    subjects_of,
)
from ktbench.results.command import eval_command
from ktbench.results.intervals import Interval, is_exact
from ktbench.results.row import Row
from ktbench.results.rows import rows_of
from ktbench.results.run import Run
from ktbench.results.scores import Change, Estimate, Pair, change_of, score_of
from ktbench.results.usage import Spread
from ktbench.spec.record import KL, SCORE, Outcome, Provenance, TaskResult
from ktbench.spec.suite import SuiteSpec
from ktbench.spec.sweep import PRECISIONS

_BASELINE = "it is the baseline"


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """The score of a cell's answers to the tasks of a subject.

    `graded` of `questions` have a score; `change` is against the baseline on the questions that both have.
    `kl` is the mean KL(baseline ‖ this) a token of right answers, in nats, with the tasks' shares of the score.
    `tokens` is the mean length of its answers, `longer` that over the baseline's on the same questions. What is None
    has its reason in `missing`, by name.
    """

    kind: SubjectKind
    subject: str
    graded: int
    questions: int
    score: Estimate | None
    change: Change | None
    kl: Estimate | None
    tokens: float | None
    longer: float | None
    missing: Mapping[str, str]

    @property
    def is_baseline(self) -> bool:
        """Whether it is a score of the baseline, which is compared with no other."""
        return self.missing.get("change") == _BASELINE


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
    ends: Mapping[str, TaskResult]

    @property
    def has_values(self) -> bool:
        """Whether any answer of it was graded or measured."""
        return bool(self.measures) or any(one.score for one in self.results)

    @property
    def score(self) -> Estimate | None:
        """The average over all tasks; None where it has none."""
        result = self.result()
        return None if result is None else result.score

    def result(self, subject: str = AVERAGE, kind: SubjectKind = "average") -> Result | None:
        """The result of a subject; None where its tasks are not graded."""
        return next((one for one in self.results if (one.kind, one.subject) == (kind, subject)), None)


_KINDS: tuple[SubjectKind, ...] = ("category", "task")


def accuracy_rows(run: Run) -> tuple[AccuracyRow, ...]:
    """Rows of `run`, a run of one part that evaluates a suite, in the order of the plan."""
    assert run.header.suite is not None, f"{run.header.run} evaluates no suite"
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
    """The answers of all cells of a run, by cell key and task."""

    suite: SuiteSpec
    subjects: tuple[Subject, ...]
    answers: Mapping[tuple[str, str], TaskAnswers]
    ends: Mapping[tuple[str, str], TaskResult]

    @classmethod
    def of(cls, run: Run, suite: SuiteSpec) -> _Cells:
        found = run.answers()
        graded = {task for (_, task), scored in found.items() if any(one.metric == SCORE for one in scored)}
        planned = {task.name for task in suite.tasks if not task.is_measured}
        open_ = planned - {task for (_, task), scored in found.items() if scored}
        return cls(
            suite=suite,
            subjects=subjects_of(suite, graded | open_),
            answers={where: answers_of(scored) for where, scored in found.items()},
            ends=run.ends(),
        )

    def of_cell(self, key: str) -> dict[str, TaskAnswers]:
        return {task.name: found for task in self.suite.tasks if (found := self.answers.get((key, task.name)))}

    def ends_of(self, key: str) -> dict[str, TaskResult]:
        return {task.name: end for task in self.suite.tasks if (end := self.ends.get((key, task.name)))}


def _row(row: Row, base: Row | None, cells: _Cells, run: Run) -> AccuracyRow:
    is_baseline = base is not None and row.cell == base.cell
    mine, ends = cells.of_cell(row.cell), cells.ends_of(row.cell)
    before = None if is_baseline else cells.of_cell(base.cell) if base else {}
    by_task = CellAnswers(suite=cells.suite, answers=mine, ends=ends, before=before)
    outcome, why = _ending(cells.suite, ends)
    return AccuracyRow(
        row=row,
        is_baseline=is_baseline,
        outcome=outcome,
        why=why,
        provenance=next((end.provenance for end in ends.values()), None),
        evidence=work_done(list(ends.values())),
        command=eval_command(row.spec, cells.suite, run.header.command),
        results=tuple(by_task.result(subject) for subject in cells.subjects),
        measures=tuple(one for task in mine for one in measures_of(task, mine[task], (before or {}).get(task))),
        ungraded={(task, why): count for task in mine for why, count in mine[task].ungraded.items()},
        ends=ends,
    )


def _ending(suite: SuiteSpec, ends: Mapping[str, TaskResult]) -> tuple[Outcome | None, str]:
    """How a cell ended over all its tasks: one that failed decides, then one that is unsupported, then open ones."""
    failed = [end for end in ends.values() if not end.outcome.timed]
    if failed:
        first = next((end for end in failed if end.outcome is not Outcome.UNSUPPORTED), failed[0])
        alike = len(failed) == len(suite.tasks) and len({(end.outcome, end.why) for end in failed}) == 1
        return first.outcome, first.why if alike else f"{first.task}: {first.why}"
    if len(ends) < len(suite.tasks):
        return None, f"{len(ends)} of {len(suite.tasks)} tasks evaluated so far"
    return Outcome.OK, ""


def work_done(ends: Sequence[TaskResult]) -> str:
    """Counters of the requested features over all tasks, and how many answers came from the cache; empty without.

    A cached answer is not computed again, so no counter moves for it.
    """
    moved: Counter[str] = Counter()
    for evidence in (evidence for end in ends for evidence in end.evidence):
        if evidence.wanted and evidence.seen is not None:
            moved[evidence.counter] += evidence.seen
    requests, cached = sum(end.requests for end in ends), sum(end.cached for end in ends)
    parts = [f"{name} {count:,}" for name, count in moved.items()]
    parts += [f"{cached:,} of {requests:,} requests answered from the cache"] if cached else []
    return ", ".join(parts)


@dataclass(frozen=True, kw_only=True, slots=True)
class CellAnswers:
    """What a cell answered by task and how its tasks ended; `before` is what the baseline answered, None for itself."""

    suite: SuiteSpec
    answers: Mapping[str, TaskAnswers]
    ends: Mapping[str, TaskResult]
    before: Mapping[str, TaskAnswers] | None

    def result(self, subject: Subject) -> Result:
        """The score of its answers to the tasks of a subject."""
        answered = {task.name: self.answers[task.name] for task in subject.tasks if task.name in self.answers}
        lacking = self._lacking(subject)
        score = None if lacking else self._score(subject, answered)
        unscored = "" if score else lacking or "none of its questions can be graded here"
        change, uncompared = (None, unscored) if unscored else self._change(subject, answered)
        kl, unmeasured = (None, unscored) if unscored else self._divergence(subject, answered)
        counts = [count for found in answered.values() for count in found.tokens.values()]
        reasons = {"score": unscored, "change": uncompared, "kl": unmeasured}
        return Result(
            kind=subject.kind,
            subject=subject.name,
            graded=sum(len(found.scores) for found in answered.values()),
            questions=sum(found.questions for found in answered.values()),
            score=score,
            change=change,
            kl=kl,
            tokens=fmean(counts) if score and counts else None,
            longer=self._longer(answered) if score else None,
            missing={name: why for name, why in reasons.items() if why},
        )

    def _lacking(self, subject: Subject) -> str:
        """Why a subject has no score: an average is one of all its tasks or none."""
        names = [task.name for task in subject.tasks if task.name not in self.answers]
        for name in names:
            if name in self.ends:
                return f"{name}: {self.ends[name].outcome}: {self.ends[name].why}"
        return f"not evaluated yet: {', '.join(names)}" if names else ""

    def _score(self, subject: Subject, answered: Mapping[str, TaskAnswers]) -> Estimate | None:
        shares = shares_of(subject, self.suite, {task: len(found.scores) for task, found in answered.items()})
        strata = [answered[task].stratum(share) for task, share in shares.items()]
        return score_of(strata) if strata else None

    def _change(self, subject: Subject, answered: Mapping[str, TaskAnswers]) -> tuple[Change | None, str]:
        """The paired change, or why there is none: every task that has a score must have one there, too."""
        if self.before is None:
            return None, _BASELINE
        pairs: dict[str, tuple[Pair, ...]] = {}
        for task, found in answered.items():
            pairs[task] = paired(self.before.get(task), found)
            if found.scores and not pairs[task]:
                return None, f"the baseline has no graded answer to a question of {task} that this one has"
        shares = shares_of(subject, self.suite, {task: len(found) for task, found in pairs.items()})
        return change_of([(share, pairs[task]) for task, share in shares.items()]), ""

    def _divergence(self, subject: Subject, answered: Mapping[str, TaskAnswers]) -> tuple[Estimate | None, str]:
        """The KL of right answers, or why there is none: every task that has a score must have one."""
        counts = {task: len(found.measured.get(KL, ())) for task, found in answered.items() if found.scores}
        lacking = next((task for task, count in counts.items() if not count), None)
        if lacking is not None:
            return None, f"{lacking}: {answered[lacking].unmeasured}"
        return divergence_of(shares_of(subject, self.suite, counts), answered), ""

    def _longer(self, answered: Mapping[str, TaskAnswers]) -> float | None:
        pairs = list(self._lengths(answered))
        total = sum(before for before, _ in pairs)
        return sum(after for _, after in pairs) / total if total else None

    def _lengths(self, answered: Mapping[str, TaskAnswers]) -> Iterator[tuple[int, int]]:
        """Tokens of the baseline's and of this cell's answer to the same questions."""
        for task, found in answered.items():
            before = self.before[task].tokens if self.before and task in self.before else {}
            yield from ((before[where], count) for where, count in found.tokens.items() if where in before)


def parts_of_average(rows: Sequence[AccuracyRow]) -> tuple[SubjectKind, tuple[str, ...]]:
    """What the average is shown by: its categories where each stands for several tasks, else its tasks.

    There are no names where the average is of one alone.
    """
    names = {kind: tuple(one.subject for one in rows[0].results if one.kind == kind) for kind in _KINDS}
    kind: SubjectKind = "category" if names["category"] and len(names["task"]) >= 2 * len(names["category"]) else "task"
    return kind, names[kind] if len(names[kind]) > 1 else ()


def is_graded(rows: Sequence[AccuracyRow]) -> bool:
    """Whether any of them has scores; else what is measured of texts stands in their place."""
    return any(row.results for row in rows)


UNTIMED = "was not timed"
# Whether a point is on the Pareto front, by intervals.
Standing = Literal["yes", "no", "unsure"]


def bounds_of(value: Interval | Estimate) -> Spread:
    """A value with the ends of its interval; without bounds where too few values gave none."""
    if isinstance(value, Interval) and is_exact(value):
        return Spread(low=value.mid, mid=value.mid, high=value.mid)
    if (isinstance(value, Interval) and not value.has_ends) or value.low is None or value.high is None:
        return Spread(low=-inf, mid=value.mid, high=inf)
    return Spread(low=value.low, mid=value.mid, high=value.high)


def standings(points: Sequence[tuple[Spread, Spread]]) -> list[Standing]:
    """Of points of two quantities, of which more is better, whether intervals show that none beats them.

    "no": another has as much of both by the middles, and more of one by whole intervals. "yes": every other has less of
    one by whole intervals. Intervals are those of each point alone, wider than of differences between answers to the
    same questions.
    """
    return [_standing(one, [*points[:n], *points[n + 1 :]]) for n, one in enumerate(points)]


def _standing(one: tuple[Spread, Spread], others: Sequence[tuple[Spread, Spread]]) -> Standing:
    for other in others:
        pairs = list(zip(one, other, strict=True))
        if all(his.mid >= mine.mid for mine, his in pairs) and any(his.low > mine.high for mine, his in pairs):
            return "no"
    apart = (any(mine.low > his.high for mine, his in zip(one, other, strict=True)) for other in others)
    return "yes" if all(apart) else "unsure"


@dataclass(frozen=True, kw_only=True, slots=True)
class FrontierPoint:
    """A cell that was timed and has a score. `is_pareto`: none is both as fast and as good, and better in one.

    Middles alone decide that; `standing` is what intervals allow to say.
    """

    row: AccuracyRow
    speed: Interval
    score: Estimate
    is_pareto: bool
    standing: Standing


def frontier_of(rows: Sequence[AccuracyRow]) -> dict[str, FrontierPoint]:
    """Points of arms by cell key, in the order of `rows`; cells that lack a speed or a score are left out."""
    arms = [row for row in rows if row.row.role == "arm"]  # its control beats no arm
    places = {
        row.row.cell: (row, speed, score) for row in arms if (speed := row.row.tokens_per_s) and (score := row.score)
    }
    mids = [(speed.mid, score.mid) for _, speed, score in places.values()]
    found = standings([(bounds_of(speed), bounds_of(score)) for _, speed, score in places.values()])
    return {
        cell: FrontierPoint(
            row=row, speed=speed, score=score, is_pareto=not _is_beaten((speed.mid, score.mid), mids), standing=standing
        )
        for (cell, (row, speed, score)), standing in zip(places.items(), found, strict=True)
    }


def absence_of(row: AccuracyRow) -> str:
    """Why a cell is no point of the frontier, whose errors are scores or measures; empty for one that is."""
    result = row.result()
    if result is None and not row.measures:
        return row.row.ending if row.row.outcome and not row.row.timed else "has no score"
    if result is not None and result.score is None:
        return result.missing["score"]
    if row.row.timed:
        return ""
    return row.row.ending if row.row.outcome else UNTIMED


def _is_beaten(one: tuple[float, float], others: Sequence[tuple[float, float]]) -> bool:
    return any(other != one and other[0] >= one[0] and other[1] >= one[1] for other in others)


def by_formats(rows: Sequence[AccuracyRow]) -> dict[tuple[str, str], AccuracyRow]:
    """The first row at each format of the experts and of the device role."""
    found: dict[tuple[str, str], AccuracyRow] = {}
    for row in rows:
        found.setdefault((row.row.spec.precision, row.row.spec.device_precision), row)
    return found


def formats_of(rows: Sequence[AccuracyRow]) -> tuple[list[str], list[str]]:
    """Formats of the experts, and of the device role."""
    experts, devices = ({place[n] for place in by_formats(rows)} for n in (0, 1))
    return [name for name in PRECISIONS if name in experts], [name for name in PRECISIONS if name in devices]


def arm_of_formats(rows: Sequence[AccuracyRow]) -> str:
    """` (arm +v+d)` where rows of other arms have the same formats and are left out; else empty."""
    shown = by_formats(rows).values()
    names = dict.fromkeys(row.row.shown for row in shown)
    return f" (arm {', '.join(names)})" if len(shown) < len(rows) else ""
