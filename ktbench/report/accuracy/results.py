"""What the answers of one cell were worth: scores of tasks, categories and their average, and the paired change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from ktbench.report.accuracy.answers import Answers
from ktbench.report.accuracy.subjects import Subject, SubjectKind, shares_of
from ktbench.results.scores import Change, Estimate, Pair, Stratum, change_of, pairs_of, score_of
from ktbench.spec.scored import Asked
from ktbench.spec.suite import SuiteSpec

_BASELINE = "it is what others are compared with"


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """What a cell's answers to the tasks of a subject were worth.

    `graded` of `asked` questions have a score; `change` is against the baseline on the questions that both have.
    `tokens` is the mean length of its answers, `longer` that over the baseline's on the same questions. What is None
    has its reason in `missing`, by name.
    """

    kind: SubjectKind
    subject: str
    graded: int
    asked: int
    score: Estimate | None
    change: Change | None
    tokens: float | None
    longer: float | None
    missing: Mapping[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Answered:
    """What a cell answered by task and how its tasks ended; `before` is what the baseline answered, None for itself."""

    suite: SuiteSpec
    answers: Mapping[str, Answers]
    ends: Mapping[str, Asked]
    before: Mapping[str, Answers] | None

    def result(self, subject: Subject) -> Result:
        """What its answers to the tasks of a subject were worth."""
        told = {task.name: self.answers[task.name] for task in subject.tasks if task.name in self.answers}
        lacking = self._lacking(subject)
        score = None if lacking else self._score(subject, told)
        unscored = "" if score else lacking or "none of its questions can be graded here"
        change, uncompared = (None, unscored) if unscored else self._change(subject, told)
        reasons = {"score": unscored, "change": uncompared}
        return Result(
            kind=subject.kind,
            subject=subject.name,
            graded=sum(len(found.scores) for found in told.values()),
            asked=sum(found.asked for found in told.values()),
            score=score,
            change=change,
            tokens=_mean([count for found in told.values() for count in found.tokens.values()]) if score else None,
            longer=self._longer(told) if score else None,
            missing={name: why for name, why in reasons.items() if why},
        )

    def _lacking(self, subject: Subject) -> str:
        """Why a subject has no score: an average is one of all its tasks or none."""
        names = [task.name for task in subject.tasks if task.name not in self.answers]
        for name in names:
            if name in self.ends:
                return f"{name}: {self.ends[name].outcome}: {self.ends[name].why}"
        return f"not asked so far: {', '.join(names)}" if names else ""

    def _score(self, subject: Subject, told: Mapping[str, Answers]) -> Estimate | None:
        shares = shares_of(subject, self.suite, {task: len(found.scores) for task, found in told.items()})
        strata = [Stratum(share=share, values=tuple(told[task].scores.values())) for task, share in shares.items()]
        return score_of(strata) if strata else None

    def _change(self, subject: Subject, told: Mapping[str, Answers]) -> tuple[Change | None, str]:
        """The paired change, or why there is none: every task that has a score must have one there, too."""
        if self.before is None:
            return None, _BASELINE
        pairs: dict[str, tuple[Pair, ...]] = {}
        for task, found in told.items():
            pairs[task] = pairs_of(self.before[task].scores, found.scores) if task in self.before else ()
            if found.scores and not pairs[task]:
                return None, f"the baseline has no graded answer to a question of {task} that this one has"
        shares = shares_of(subject, self.suite, {task: len(found) for task, found in pairs.items()})
        return change_of([(share, pairs[task]) for task, share in shares.items()]), ""

    def _longer(self, told: Mapping[str, Answers]) -> float | None:
        pairs = list(self._lengths(told))
        total = sum(before for before, _ in pairs)
        return sum(after for _, after in pairs) / total if total else None

    def _lengths(self, told: Mapping[str, Answers]) -> Iterator[tuple[int, int]]:
        """Tokens of the baseline's and of this cell's answer to the same questions."""
        for task, found in told.items():
            before = self.before[task].tokens if self.before and task in self.before else {}
            yield from ((before[where], count) for where, count in found.tokens.items() if where in before)


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None
