"""Averages, their errors and paired changes: by hand, against float64 numpy, and by simulation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from math import exp, log, sqrt
from random import Random
from typing import Any

import numpy as np
import pytest

from ktbench.results.scores import (
    Estimate,
    Flips,
    Pair,
    ScoreVerdict,
    change_of,
    exponential,
    flips_of,
    mean_of_means,
    pairs_of,
    score_of,
    weighted_mean,
)
from ktbench.results.strata import Stratum, normal_quantile, student_quantile, wilson_interval
from tests.results.test_strata import tango_interval


def test_only_questions_that_both_answered_are_paired() -> None:
    before = {"a": 1.0, "b": 0.0, "c": 1.0, "only before": 1.0}
    after = {"c": 0.0, "a": 1.0, "only after": 1.0, "b": 1.0}
    assert pairs_of(before, after) == (Pair(1.0, 1.0), Pair(0.0, 1.0), Pair(1.0, 0.0))
    assert flips_of(pairs_of(before, after)) == Flips(lost=1, gained=1)


def test_partly_right_answers_flip_where_their_score_moves() -> None:
    assert flips_of([Pair(0.5, 0.4), Pair(0.2, 0.9), Pair(1.0, 0.99), Pair(0.3, 0.3)]) == Flips(lost=2, gained=1)


@pytest.mark.parametrize(
    ("lost", "gained", "p"),
    [
        (7, 1, 18 / 256),  # Fagerland, Lydersen and Laake, BMC Med. Res. Methodol. 13 (2013) 91: 0.0703
        (16, 6, 0.052479),  # the same authors, complete response before and after consolidation therapy
        (0, 0, 1.0),
        (3, 3, 1.0),
        (6, 0, 1 / 32),
    ],
)
def test_exact_mcnemar(lost: int, gained: int, p: float) -> None:
    assert Flips(lost=lost, gained=gained).p == pytest.approx(p, abs=5e-7)
    assert Flips(lost=gained, gained=lost).p == Flips(lost=lost, gained=gained).p


def test_mcnemar_of_thousands_of_flips_neither_overflows_nor_takes_long() -> None:
    assert Flips(lost=3000, gained=3000).p == 1.0
    assert 0 < Flips(lost=3200, gained=2800).p < 1e-6


@pytest.mark.parametrize(
    ("interval", "counts", "message"),
    [
        *[(wilson_interval, counts, "right=") for counts in ((-1, 10), (11, 10), (0, 0))],
        (student_quantile, (0,), "degree of freedom"),
        (weighted_mean, ([], []), "at least one document"),
    ],
)
def test_counts_that_no_sample_has_are_refused(interval: Callable[..., object], counts: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        interval(*counts)


def stratum(share: float, *values: float) -> Stratum:
    return Stratum(share=share, values=values)


def pairs(kept: int, lost: int, gained: int, wrong: int = 0) -> list[Pair]:
    counts = {Pair(1.0, 1.0): kept, Pair(1.0, 0.0): lost, Pair(0.0, 1.0): gained, Pair(0.0, 0.0): wrong}
    return [*Counter(counts).elements()]


def test_one_task_has_the_plain_standard_error_and_wilsons_interval() -> None:
    values = [1.0] * 7 + [0.0] * 3
    found = score_of([stratum(1.0, *values)])
    assert (found.mid, found.n) == (pytest.approx(0.7), 10)
    assert found.se == pytest.approx(np.std(values, ddof=1) / sqrt(10))
    assert (found.low, found.high) == pytest.approx(wilson_interval(7, 10))


def test_an_average_of_tasks_respects_their_shares() -> None:
    one, other = [1.0] * 30 + [0.0] * 10, [1.0, 0.0, 0.0, 1.0, 1.0]
    found = score_of([stratum(0.25, *one), stratum(0.75, *other)])
    errors = [np.var(values, ddof=1) / len(values) for values in (one, other)]
    assert found.mid == pytest.approx(0.25 * 0.75 + 0.75 * 0.6)
    assert found.se == pytest.approx(sqrt(0.25**2 * errors[0] + 0.75**2 * errors[1]))
    assert found.n == 45


def test_an_end_is_the_extreme_of_what_the_tasks_together_allow() -> None:
    """On a grid: the least and the largest average of rates whose score statistics sum to at most z²."""
    counts, shares = ((30, 40), (3, 5)), (0.25, 0.75)
    found = score_of(
        [stratum(share, *[1.0] * x, *[0.0] * (n - x)) for share, (x, n) in zip(shares, counts, strict=True)]
    )
    rates = np.linspace(0.0005, 0.9995, 2000)
    parts = [(x / n - rates) ** 2 * n / (rates * (1 - rates)) for x, n in counts]
    allowed = parts[0][:, None] + parts[1][None, :] <= normal_quantile() ** 2
    averages = (shares[0] * rates[:, None] + shares[1] * rates[None, :])[allowed]
    width = averages.max() - averages.min()
    assert found.low == pytest.approx(averages.min(), abs=0.02 * width)
    assert found.high == pytest.approx(averages.max(), abs=0.02 * width)


def test_tasks_that_are_alike_have_the_interval_of_all_their_questions() -> None:
    found = score_of([stratum(0.5, *[1.0] * 15, *[0.0] * 5)] * 2)
    assert (found.low, found.high) == pytest.approx(wilson_interval(30, 40))


def test_a_small_task_that_flips_often_decides_the_width() -> None:
    """Its own variance, whatever the rates of a large task beside it: that of many questions is near 0."""
    found = change_of([(0.5, pairs(40, 30, 30)), (0.5, pairs(100_000, 0, 0))]).difference
    alone = change_of([(1.0, pairs(40, 30, 30))]).difference
    assert found.low is not None and alone.low is not None
    assert found.low == pytest.approx(alone.low / 2, rel=0.01)


def test_a_task_without_a_flip_widens_the_interval() -> None:
    one = change_of([(0.5, pairs(80, 10, 10)), (0.5, pairs(100_000, 0, 0))]).difference
    other = change_of([(0.5, pairs(80, 10, 10)), (0.5, pairs(10, 0, 0))]).difference
    assert one.low is not None and other.low is not None
    assert other.low < one.low < 0


def clusters_of(size: int, *values: float) -> tuple[tuple[float, ...], tuple[str, ...]]:
    """Each value `size` times, in a cluster of its own."""
    return tuple(v for v in values for _ in range(size)), tuple(str(n) for n in range(len(values)) for _ in range(size))


@pytest.mark.parametrize("size", [2, 5])
def test_questions_that_repeat_each_other_tell_as_much_as_one(size: int) -> None:
    values = (0.2, 0.9, 0.55, 1.0, 0.3)
    repeated, names = clusters_of(size, *values)
    once, again = score_of([stratum(1.0, *values)]), score_of([Stratum(share=1.0, values=repeated, clusters=names)])
    assert (again.low, again.mid, again.high, again.se) == pytest.approx((once.low, once.mid, once.high, once.se))


@pytest.mark.parametrize("size", [2, 5])
def test_repeated_questions_that_are_right_or_wrong_count_once(size: int) -> None:
    values = [1.0] * 150 + [0.0] * 50
    repeated, names = clusters_of(size, *values)
    found = score_of([Stratum(share=1.0, values=repeated, clusters=names)])
    low, high = wilson_interval(150, 200)
    assert found.low == pytest.approx(low, abs=0.03 * (high - low))
    assert found.high == pytest.approx(high, abs=0.03 * (high - low))


def test_clusters_without_a_flip_count_as_one_question_each() -> None:
    values, names = clusters_of(4, *[0.0] * 100)
    found = change_of([(1.0, [Pair(1.0, 1.0 + value, name) for value, name in zip(values, names, strict=True)])])
    low, high = tango_interval(0, 0, 100)
    assert found.difference.low is not None and found.difference.high is not None
    assert found.difference.low == pytest.approx(low, rel=0.05)
    assert found.difference.high == pytest.approx(high, rel=0.05)


def test_p_of_clusters_counts_each_once() -> None:
    moved = [Pair(1.0, 0.0, str(n // 5)) for n in range(25)] + [Pair(1.0, 1.0, str(n)) for n in range(5, 100)]
    change = change_of([(1.0, moved)])
    assert (change.flips.lost, change.flips.gained, change.flips.clusters) == (25, 0, (5, 0))
    assert change.flips.p == pytest.approx(2 / 2**5)
    assert change.verdict is ScoreVerdict.NONE_SHOWN


def test_clusters_of_two_tasks_are_not_the_same() -> None:
    task = [Pair(1.0, 0.0, "a"), Pair(1.0, 0.0, "a"), Pair(0.0, 1.0, "")]
    assert flips_of(task, task).clusters == (2, 2)


def test_partial_credit_has_students_interval_within_0_and_1() -> None:
    values = [0.2, 0.9, 0.55, 1.0]
    found = score_of([stratum(1.0, *values)])
    se = np.std(values, ddof=1) / 2
    half = student_quantile(3) * se
    assert (found.low, found.high) == pytest.approx((max(0.0, np.mean(values) - half), 1.0))


@pytest.mark.parametrize("values", [(0.5,), (0.5, 0.5, 0.5)])
def test_where_nothing_tells_the_spread_there_is_no_interval(values: tuple[float, ...]) -> None:
    found = score_of([stratum(1.0, *values)])
    assert (found.low, found.high) == (None, None)


def test_one_question_has_no_standard_error_but_wilsons_width() -> None:
    found = score_of([stratum(1.0, 1.0)])
    assert found.se is None
    assert (found.low, found.high) == pytest.approx(wilson_interval(1, 1))


def test_a_change_of_one_task_is_tangos_and_relative_to_the_baseline() -> None:
    change = change_of([(1.0, pairs(kept=60, lost=20, gained=4, wrong=16))])
    low, high = tango_interval(20, 4, 100)
    assert (change.difference.low, change.difference.high) == pytest.approx((low, high))
    assert change.base == 0.8
    assert change.relative is not None
    assert (change.relative.low, change.relative.mid, change.relative.high) == pytest.approx(
        (low / 0.8, -0.16 / 0.8, high / 0.8)
    )
    assert (change.flips.lost, change.flips.gained) == (20, 4)
    assert change.verdict is ScoreVerdict.LOWER


def test_the_standard_error_of_a_change_is_that_of_the_differences() -> None:
    chosen = pairs(kept=60, lost=20, gained=4, wrong=16)
    moved = [pair.after - pair.before for pair in chosen]
    assert change_of([(1.0, chosen)]).difference.se == pytest.approx(np.std(moved, ddof=1) / 10)


def test_tasks_that_are_alike_are_compared_as_one() -> None:
    split = change_of([(0.5, pairs(40, 4, 2, 4)), (0.5, pairs(40, 4, 2, 4))])
    low, high = tango_interval(8, 4, 100)
    assert (split.difference.low, split.difference.high) == pytest.approx((low, high))


@pytest.mark.parametrize(
    ("lost", "gained", "verdict"),
    [
        (0, 0, ScoreVerdict.NONE_SHOWN),
        (5, 0, ScoreVerdict.NONE_SHOWN),  # the interval lies below 0, but five of five flips happen by chance: p = 1/16
        (6, 0, ScoreVerdict.LOWER),
        (0, 6, ScoreVerdict.HIGHER),
        (60, 55, ScoreVerdict.NONE_SHOWN),
    ],
)
def test_a_verdict_needs_interval_and_flips(lost: int, gained: int, verdict: ScoreVerdict) -> None:
    assert change_of([(1.0, pairs(kept=400, lost=lost, gained=gained))]).verdict is verdict


def test_no_verdict_goes_against_its_flips() -> None:
    """Of unlike tasks the small one decides the average, the large one most of the flips."""
    change = change_of([(0.5, pairs(kept=2, lost=8, gained=0)), (0.5, pairs(kept=970, lost=0, gained=30))])
    assert change.difference.high is not None and change.difference.high < 0
    assert change.flips.gained > change.flips.lost and change.flips.p < 0.05
    assert change.verdict is ScoreVerdict.NONE_SHOWN


def test_nothing_is_ever_called_the_same() -> None:
    assert "same" not in {str(verdict) for verdict in ScoreVerdict}
    assert str(change_of([(1.0, pairs(kept=100000, lost=0, gained=0))]).verdict) == "no difference shown"


def test_a_baseline_of_zero_has_no_relative_change() -> None:
    assert change_of([(1.0, pairs(kept=0, lost=0, gained=3, wrong=5))]).relative is None


def test_nothing_loses_more_than_all() -> None:
    relative = change_of([(1.0, pairs(kept=0, lost=4, gained=0, wrong=4))]).relative
    assert relative is not None
    assert (relative.low, relative.mid) == (-1.0, -1.0)


def test_partial_credit_is_compared_by_students_t() -> None:
    before, after = [0.4, 0.9, 0.75, 0.1], [0.3, 0.7, 0.75, 0.0]
    moved = np.array(after) - np.array(before)
    change = change_of([(1.0, [*map(Pair, before, after)])])
    half = student_quantile(3) * moved.std(ddof=1) / 2
    assert (change.difference.low, change.difference.high) == pytest.approx((moved.mean() - half, moved.mean() + half))


def test_the_interval_of_an_average_covers_its_truth() -> None:
    """Two tasks of unlike size, difficulty and loss, drawn 400 times."""
    rng, held = Random(7), 0
    for _ in range(400):
        drawn = []
        for n, loses, gains in ((40, 0.10, 0.02), (120, 0.03, 0.02)):
            rolls = [rng.random() for _ in range(n)]
            lost, gained = sum(roll < loses for roll in rolls), sum(roll > 1 - gains for roll in rolls)
            drawn.append((0.5, pairs(n - lost - gained, lost, gained)))
        found = change_of(drawn).difference
        assert found.low is not None
        assert found.high is not None
        held += found.low <= (0.02 - 0.10 + 0.02 - 0.03) / 2 <= found.high
    assert 0.92 <= held / 400 <= 0.99


def test_a_mean_over_documents_weighs_by_tokens() -> None:
    values, weights = [2.0, 3.0, 2.5], [100.0, 50.0, 10.0]
    found = weighted_mean(values, weights)
    mid = np.average(values, weights=weights)
    spread = sum((w * (v - mid)) ** 2 for v, w in zip(values, weights, strict=True))
    se = sqrt(spread * 3 / 2) / 160
    assert (found.mid, found.se, found.n) == (pytest.approx(mid), pytest.approx(se), 3)
    assert found.high == pytest.approx(mid + student_quantile(2) * se)


def test_equal_documents_have_the_plain_standard_error() -> None:
    values = [1.0, 2.0, 4.0, 3.0]
    assert weighted_mean(values, [8.0] * 4).se == pytest.approx(np.std(values, ddof=1) / 2)


def test_a_perplexity_keeps_the_ends_of_its_logarithm() -> None:
    mean = Estimate(mid=log(20), se=0.1, low=log(16), high=log(25), n=9)
    found = exponential(mean)
    assert (found.low, found.mid, found.high, found.se) == pytest.approx((16, 20, 25, 2.0))
    assert exponential(weighted_mean([2.0], [5.0])) == Estimate(mid=exp(2.0), se=None, low=None, high=None, n=1)


@pytest.mark.parametrize("tasks", [2, 7, 12])
@pytest.mark.parametrize("n", [1, 40, 200])
def test_an_average_without_a_wrong_answer_lies_in_its_interval(tasks: int, n: int) -> None:
    """To the last bit: figures draw the distance to each end."""
    for value in (0.0, 1.0):
        estimate = score_of([Stratum(share=1 / tasks, values=(value,) * n) for _ in range(tasks)])
        assert estimate is not None
        assert estimate.low <= estimate.mid <= estimate.high


def test_a_mean_of_means_has_the_errors_of_its_parts() -> None:
    parts = [weighted_mean([1.0, 2.0, 4.0], [1.0, 2.0, 3.0]), weighted_mean([0.0, 8.0], [1.0, 1.0])]
    found = mean_of_means([(0.75, parts[0]), (0.25, parts[1])])
    assert found.mid == pytest.approx(0.75 * parts[0].mid + 0.25 * parts[1].mid)
    assert found.se == pytest.approx(np.hypot(0.75 * (parts[0].se or 0), 0.25 * (parts[1].se or 0)))
    assert found.n == 5
    (alone,) = parts[:1]
    same = mean_of_means([(1.0, alone)])
    assert (same.mid, same.se, same.low, same.high) == pytest.approx((alone.mid, alone.se, alone.low, alone.high))


def test_a_mean_of_means_lacks_what_a_part_lacks() -> None:
    single = weighted_mean([2.0], [5.0])
    assert mean_of_means([(0.5, single), (0.5, weighted_mean([0.0, 1.0], [1.0, 1.0]))]) == Estimate(
        mid=1.25, se=None, low=None, high=None, n=3
    )
    constant = mean_of_means([(1.0, weighted_mean([0.0] * 3, [1.0] * 3))])
    assert (constant.low, constant.mid, constant.high) == (0.0, 0.0, 0.0)


def test_intervals_of_means_of_means_cover_what_they_should() -> None:
    """Two tasks of unlike spread and size; the truth is known."""
    rng, covered = np.random.default_rng(5), 0
    for _ in range(1500):
        parts = [(0.5, weighted_mean([*rng.normal(1, 1, 6)], [1.0] * 6))]
        parts.append((0.5, weighted_mean([*rng.normal(3, 0.2, 40)], [1.0] * 40)))
        found = mean_of_means(parts)
        covered += (found.low or 0.0) <= 2.0 <= (found.high or 0.0)
    assert 0.93 <= covered / 1500 <= 0.97
