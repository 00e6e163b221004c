"""The answers of a cell to a task, gathered by question: scores, lengths, and what could not be graded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import fsum, inf
from statistics import fmean
from typing import Literal

from ktbench.results.scores import Estimate, Pair, exponential, mean_of_means, pairs_of, weighted_mean
from ktbench.results.settings import group_by
from ktbench.results.strata import Stratum
from ktbench.spec.record import KL, SCORE, SampleResult
from ktbench.spec.suite import SuiteSpec, TaskSpec

SubjectKind = Literal["average", "category", "task"]
AVERAGE = "average"


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """Tasks that have one score together."""

    kind: SubjectKind
    name: str
    tasks: tuple[TaskSpec, ...]


def subjects_of(suite: SuiteSpec, graded: Collection[str]) -> tuple[Subject, ...]:
    """The average of all `graded` tasks (names), then categories where there are several, then the tasks."""
    tasks = tuple(task for task in suite.tasks if task.name in graded)
    return tuple(_subjects(tasks)) if tasks else ()


def _subjects(tasks: tuple[TaskSpec, ...]) -> Iterator[Subject]:
    yield Subject(kind="average", name=AVERAGE, tasks=tasks)
    categories = tuple(dict.fromkeys(task.category for task in tasks if task.category))
    for name in categories if len(categories) > 1 else ():
        yield Subject(kind="category", name=name, tasks=tuple(task for task in tasks if task.category == name))
    for task in tasks:
        yield Subject(kind="task", name=task.name, tasks=(task,))


def shares_of(subject: Subject, suite: SuiteSpec, counts: Mapping[str, int]) -> dict[str, float]:
    """Each task's share of the subject's score; they sum to 1. Tasks without a question in `counts` have none."""
    graded = [task for task in subject.tasks if counts.get(task.name)]
    if suite.average == "questions":
        total = sum(counts[task.name] for task in graded)
        return {task.name: counts[task.name] / total for task in graded}
    if subject.kind == "average" and suite.average == "categories":
        sizes = Counter(task.category for task in graded)
        return {task.name: 1 / (len(sizes) * sizes[task.category]) for task in graded}
    return {task.name: 1 / len(graded) for task in graded}


# What is measured of documents where answers are not graded, in the order of a table.
NLL, NLL_WORD, NLL_BYTE, TOP1 = "nll_nats", "nll_nats_per_word", "nll_nats_per_byte", "top1"
# What exp of a loss is called.
PERPLEXITIES = {NLL: "perplexity", NLL_WORD: "perplexity of words", NLL_BYTE: "perplexity of bytes"}
LOSSES = tuple(PERPLEXITIES)
MEASURED = (*LOSSES, KL, TOP1)


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskAnswers:
    """What one cell answered to one task.

    `scores` are by question, the mean over its graded samples; `questions` counts those with answers, graded or not;
    `ungraded` the answers that cannot be graded here, and texts without a value, by reason; `tokens` are new tokens by
    question and sample. `measured` are values with their weights by metric and document, of graded answers the KL of
    the right ones alone; `unmeasured` is why there is none. `clusters` are by question, where it is of one; those of
    windows are the texts that these were cut from.
    """

    scores: Mapping[str, float]
    clusters: Mapping[str, str]
    questions: int
    ungraded: Mapping[str, int]
    tokens: Mapping[tuple[str, int], int]
    measured: Mapping[str, Mapping[str, tuple[float, float]]]
    unmeasured: str = ""

    def stratum(self, share: float) -> Stratum:
        """Its scores as those of a task with this share of an average."""
        clusters = tuple(self.clusters.get(question, "") for question in self.scores)
        return Stratum(share=share, values=tuple(self.scores.values()), clusters=clusters)


def paired(before: TaskAnswers | None, after: TaskAnswers | None) -> tuple[Pair, ...]:
    """Scores of the questions that both have; none where one of them is not there."""
    return pairs_of(before.scores, after.scores, after.clusters) if before and after else ()


def answers_of(scored: Sequence[SampleResult]) -> TaskAnswers:
    """Gather the answers that count of one cell to one task."""
    graded = [one for one in scored if one.metric == SCORE]
    compared = next((one for one in scored if one.metric == KL), None)
    values = group_by((one.question, one.value) for one in graded if one.value is not None)
    return TaskAnswers(
        scores={question: fmean(found) for question, found in values.items()},
        clusters={one.question: one.cluster for one in scored if one.cluster},
        questions=len({one.question for one in graded}),
        ungraded=_ungraded(graded or scored),
        tokens={(one.question, one.sample): one.tokens for one in graded if one.tokens is not None},
        measured={metric: found for metric in MEASURED if (found := _measured(scored, metric))},
        unmeasured="its predictions were not compared" if compared is None else compared.why,
    )


def _ungraded(scored: Iterable[SampleResult]) -> Counter[str]:
    """A text that lacks a value in several metrics counts once."""
    lacking = dict.fromkeys((s.question, s.sample, s.why or "no reason given") for s in scored if s.value is None)
    return Counter(why for _, _, why in lacking)


def _measured(scored: Iterable[SampleResult], metric: str) -> dict[str, tuple[float, float]]:
    known = [one for one in scored if one.metric == metric and one.value is not None]
    return {one.question: (one.value, one.weight) for one in known if one.value is not None}


@dataclass(frozen=True, kw_only=True, slots=True)
class Measure:
    """What one metric gave over the documents of a task: perplexity for losses, else the mean.

    `change` is the perplexity over the baseline's less 1, on the documents that both have; of other metrics, which are
    against the baseline as it is, None.
    """

    task: str
    metric: str
    value: Estimate
    change: Estimate | None


def measures_of(task: str, mine: TaskAnswers, base: TaskAnswers | None) -> tuple[Measure, ...]:
    """Measures of a cell's answers to a task that is not graded, held against the baseline's."""
    if mine.questions:
        return ()
    return tuple(_measure(task, metric, mine, base) for metric in mine.measured)


def _measure(task: str, metric: str, mine: TaskAnswers, base: TaskAnswers | None) -> Measure:
    found = mine.measured[metric]
    mean = _within_range(_over_texts(found, mine.clusters), 1.0 if metric == TOP1 else inf)
    if metric not in LOSSES:
        return Measure(task=task, metric=metric, value=mean, change=None)
    theirs = {} if base is None else base.measured.get(metric, {})
    moved = {key: (value - theirs[key][0], weight) for key, (value, weight) in found.items() if key in theirs}
    ratio = exponential(_over_texts(moved, mine.clusters)) if moved else None
    change = ratio and ratio.mapped(lambda value: value - 1)
    return Measure(task=task, metric=metric, value=exponential(mean), change=change)


def divergence_of(shares: Mapping[str, float], answered: Mapping[str, TaskAnswers]) -> Estimate:
    """The mean KL a token (nats) over right answers to several tasks, each with its share of it."""
    parts = [(share, answered[task]) for task, share in shares.items()]
    return _within_range(
        mean_of_means([(share, _over_texts(found.measured[KL], found.clusters)) for share, found in parts])
    )


def _over_texts(found: Mapping[str, tuple[float, float]], clusters: Mapping[str, str]) -> Estimate:
    """The mean with its interval over texts: windows of one are predicted alike, and count together."""
    texts = group_by((clusters.get(question, question), pair) for question, pair in found.items()).values()
    return weighted_mean(*zip(*map(_of_text, texts), strict=True))


def _of_text(windows: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """The value of a text and its weight."""
    values, weights = zip(*windows, strict=True)
    return (fmean(values, weights), fsum(weights)) if len(windows) > 1 else windows[0]


def _within_range(mean: Estimate, most: float = inf) -> Estimate:
    """Its interval cut to what the metric can be: none is below 0."""
    return replace(mean.mapped(lambda value: min(max(value, 0.0), most)), mid=mean.mid)
