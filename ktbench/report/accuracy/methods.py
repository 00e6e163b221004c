"""How the numbers of a table of answers were made, in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ktbench.report.accuracy.text import SURE_MARK
from ktbench.report.machine import software_sentence
from ktbench.report.text import number
from ktbench.results import Run
from ktbench.results.accuracy import AccuracyRow
from ktbench.results.answers import LOSSES
from ktbench.results.intervals import CONFIDENCE
from ktbench.results.run import facts_of
from ktbench.results.scores import SURE


def accuracy_methods(run: Run, rows: Sequence[AccuracyRow]) -> tuple[str, ...]:
    """Statistics of what the rows show, and the software."""
    changes = [one.change for row in rows for one in row.results if one.change]
    sentences = (
        *_scores(rows),
        *(_changes(len(changes)) if changes else ()),
        *_measures(rows),
        software_sentence(facts_of(run)),
    )
    return tuple(filter(None, sentences))


def _scores(rows: Sequence[AccuracyRow]) -> Iterator[str]:
    scores = [one.score for row in rows for one in row.results if one.score]
    if not scores:
        return
    yield (
        "A score is a mean over questions, several samples of one averaged first; the error of an average is made "
        "of those of its tasks. Intervals of scores are Wilson's where answers are right or wrong, else Student's t. "
        "SE is the standard error, 0.0 where all answers are right: the interval then says what is unknown."
    )
    if any(score.se is None for score in scores):
        yield "± ? stands where a task has a single question, which tells no error."


def _changes(count: int) -> Iterator[str]:
    yield (
        f"Differences are formed question by question on those that both cells answered, with {CONFIDENCE:.0%} "
        "intervals: Tango's score interval where answers are right or wrong (for averages of unlike weight at the "
        "effective number of questions), else Student's t. Relative changes are these over the baseline's score on "
        "these questions, taken as known. Flips count questions that score lower and higher; p is the exact two-sided "
        "McNemar test of the two (of partial credit: the sign test), which weighs all questions alike."
    )
    yield (
        f"Lower and higher ({SURE_MARK}): the whole interval lies beyond 0 and, where answers are right or wrong, p is "
        f"at most {SURE:g} and flips point the same way; no difference shown: anything else, which does not mean that "
        "scores are the same. "
        f"Where nothing differs, up to {SURE:.0%} of comparisons seem beyond noise by chance, "
        f"here about {number(SURE * count, 2)} of {count}."
    )


def _measures(rows: Sequence[AccuracyRow]) -> Iterator[str]:
    metrics = {one.metric for row in rows for one in row.measures}
    if not metrics:
        return
    losses = (
        "Perplexity is exp of the mean loss, its change the ratio to the baseline's on the same texts. "
        if metrics & {*LOSSES}
        else ""
    )
    against = "KL is the mean of KL(baseline ‖ row) by the natural logarithm, top-1 agreement the share of positions "
    drift = f"{against}at which both hold the same token most likely. " if metrics - {*LOSSES} else ""
    yield (
        f"{losses}{drift}Means are weighted by tokens, their errors and {CONFIDENCE:.0%} intervals are over texts, or "
        "windows of them taken as independent (ratio estimator, Student's t)."
    )
