"""Speed-ups: paired inside rounds, Hodges-Lehmann intervals against brute force and SciPy, verdicts under noise."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import combinations
from math import comb, exp, log
from random import Random
from statistics import median

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import mannwhitneyu

from ktbench.results.intervals import Interval, exact
from ktbench.results.speedups import (
    Verdict,
    judge,
    paired_interval,
    paired_ratios,
    shift_coverage,
    shift_interval,
    unpaired_interval,
)
from ktbench.results.stopping import Stopping
from ktbench.spec.run_spec import MeasureSpec
from tests.results.noise import NOISES, Array, Noise, rounds


def test_ratios_are_formed_inside_rounds_that_both_have() -> None:
    assert paired_ratios({0: 6.0, 1: 8.0, 3: 9.0}, {3: 3.0, 0: 2.0, 2: 1.0}) == {0: 3.0, 3: 3.0}


def test_drift_common_to_a_round_falls_out() -> None:
    drift = {n: 1.0 + n for n in range(6)}
    interval = paired_interval({n: 3 * x for n, x in drift.items()}, {n: 2 * x for n, x in drift.items()})
    assert interval is not None
    assert (interval.low, interval.high) == (1.5, 1.5)


@pytest.mark.parametrize("cell", [{}, {1: 2.0}])
def test_without_a_common_round_there_is_none(cell: dict[int, float]) -> None:
    assert paired_interval({0: 1.0}, cell) is None


# Permeability of the human placenta at term and at 12 to 26 weeks: Hollander and Wolfe (1999), table 4.1.
TERM = (0.80, 0.83, 1.89, 1.04, 1.45, 1.38, 1.91, 1.64, 0.73, 1.46)
EARLY = (1.15, 0.88, 0.90, 0.74, 1.21)
SIZES = st.integers(min_value=1, max_value=6)


def ways_of(m: int, n: int) -> Counter[int]:
    """Mann and Whitney's statistic over all orders of m and n values, counted one by one."""
    places = range(m + n)
    return Counter(
        sum(mine > theirs for mine in ones for theirs in set(places) - {*ones}) for ones in combinations(places, m)
    )


def test_the_published_example() -> None:
    """Examples 4.3 and 4.4 of the book: estimate 0.305, and (-0.15, 0.76) with 96 %."""
    found = shift_interval(TERM, EARLY, confidence=0.95)
    assert (found.low, found.mid, found.high) == pytest.approx((-0.15, 0.305, 0.76))
    assert found.coverage == pytest.approx(0.960, abs=5e-4)
    assert found.n == 5


@given(m=SIZES, n=SIZES, data=st.data())
@settings(max_examples=30, deadline=None)
def test_coverage_is_that_of_all_orders(m: int, n: int, data: st.DataObject) -> None:
    rank = data.draw(st.integers(min_value=1, max_value=(m * n + 1) // 2))
    ways = ways_of(m, n)
    outside = sum(count for u, count in ways.items() if u < rank)
    assert shift_coverage(m, n, rank) == pytest.approx(max(0.0, 1 - 2 * outside / comb(m + n, m)))


@pytest.mark.parametrize(("m", "n", "rank"), [(6, 6, 6), (12, 12, 38), (12, 20, 70), (20, 20, 128)])
def test_coverage_agrees_with_scipy(m: int, n: int, rank: int) -> None:
    """Two-sided p of a sample whose U is rank - 1 is what an interval between those differences leaves outside."""
    one, other = _with_statistic(m, n, rank - 1)
    p = mannwhitneyu(one, other, alternative="two-sided", method="exact").pvalue
    assert shift_coverage(m, n, rank) == pytest.approx(1 - p, abs=1e-12)


def _with_statistic(m: int, n: int, u: int) -> tuple[list[float], list[float]]:
    """Two samples of which `one` exceeds `other` in u pairs."""
    above = [n] * (u // n) + [u % n] * (u % n > 0)
    above = [0] * (m - len(above)) + sorted(above)
    return [place - 0.5 + 0.01 * k for k, place in enumerate(above)], [float(k) for k in range(n)]


@given(m=SIZES, n=SIZES, seed=st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_the_interval_holds_the_shifts_that_the_test_does_not_reject(m: int, n: int, seed: int) -> None:
    rng = Random(seed)
    one, other = [rng.gauss(1, 1) for _ in range(m)], [rng.gauss(0, 1) for _ in range(n)]
    found = shift_interval(one, other)
    assert found.mid == pytest.approx(median(mine - theirs for mine in one for theirs in other))
    if not found.sound:
        return
    for shift, is_inside in ((found.low - 1e-9, False), (found.low + 1e-9, True), (found.high + 1e-9, False)):
        p = mannwhitneyu([x - shift for x in one], other, alternative="two-sided", method="exact").pvalue
        assert (p > 1 - 0.95 + 1e-12) == is_inside


@pytest.mark.parametrize(
    ("m", "n", "is_sound"), [(3, 3, False), (4, 4, True), (3, 5, True), (2, 7, False), (2, 8, True)]
)
def test_few_values_say_so(m: int, n: int, is_sound: bool) -> None:
    found = shift_interval([float(k) for k in range(m)], [k + 0.1 for k in range(n)])
    assert found.sound == is_sound
    if not is_sound:
        assert (found.low, found.high) == (-(n - 1) - 0.1, m - 1 - 0.1)


def test_it_is_a_ratio_and_turns_round_with_its_sides() -> None:
    slow, fast = [exp(x) for x in TERM], [exp(x) for x in EARLY]
    found, inverse = unpaired_interval(slow, fast), unpaired_interval(fast, slow)
    assert found is not None and inverse is not None
    assert (log(found.low), log(found.mid), log(found.high)) == pytest.approx((-0.15, 0.305, 0.76))
    assert (inverse.low, inverse.mid, inverse.high) == pytest.approx((1 / found.high, 1 / found.mid, 1 / found.low))


def test_it_covers_as_often_as_it_says() -> None:
    """Samples of one skewed distribution, 1.2 times apart."""
    rng, trials, hits = Random(0), 600, 0
    for _ in range(trials):
        one = [1.2 * exp(rng.expovariate(1)) for _ in range(8)]
        found = unpaired_interval(one, [exp(rng.expovariate(1)) for _ in range(6)])
        assert found is not None
        hits += found.low <= 1.2 <= found.high
    assert 0.935 < hits / trials < 0.99


@pytest.mark.parametrize(("one", "other"), [([], [1.0]), ([1.0], [])])
def test_without_values_on_a_side_there_is_none(one: list[float], other: list[float]) -> None:
    assert unpaired_interval(one, other) is None
    with pytest.raises(ValueError, match="at least one on both sides"):
        shift_interval(one, other)


def test_values_must_be_finite() -> None:
    with pytest.raises(ValueError, match="every one must be finite"):
        shift_interval([1.0, float("nan")], [1.0])


MOVED = (Verdict.FASTER, Verdict.SLOWER)


def interval(low: float, high: float, n: int = 6) -> Interval:
    return Interval(low=low, mid=(low + high) / 2, high=high, coverage=1 - 2.0 ** (1 - n), n=n)


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (1.03, 1.20, Verdict.FASTER),
        (1.01, 1.20, Verdict.UNSURE),
        (0.99, 1.20, Verdict.UNSURE),
        (0.99, 1.01, Verdict.SAME),
        (1.0, 1.0, Verdict.SAME),
        (0.97, 1.01, Verdict.UNSURE),
        (0.80, 0.97, Verdict.SLOWER),
        (0.80, 0.99, Verdict.UNSURE),
    ],
)
def test_needs_the_whole_interval(low: float, high: float, verdict: Verdict) -> None:
    assert judge(interval(low, high)) is verdict


@pytest.mark.parametrize(("low", "high"), [(1.5, 1.6), (0.5, 0.6), (1.0, 1.0)])
def test_begins_unsure_and_stays_so_without_six_values(low: float, high: float) -> None:
    assert judge(None) is Verdict.UNSURE
    assert judge(interval(low, high, n=5)) is Verdict.UNSURE


def test_exchanging_the_cells_exchanges_faster_and_slower() -> None:
    exchanged = {Verdict.FASTER: Verdict.SLOWER, Verdict.SLOWER: Verdict.FASTER}
    for low, high in [(1.021, 1.1), (1.019, 1.1), (0.981, 1.019), (0.5, 0.979), (1.0, 1.02)]:
        verdict = judge(interval(low, high))
        assert judge(interval(1 / high, 1 / low)) is exchanged.get(verdict, verdict)


def test_a_difference_that_the_control_shows_too_is_not_one() -> None:
    speedup = interval(1.05, 1.10)
    assert judge(speedup.with_spread(interval(0.99, 1.01))) is Verdict.FASTER
    assert judge(speedup.with_spread(interval(0.99, 1.06))) is Verdict.UNSURE
    assert judge(interval(0.90, 0.95).with_spread(interval(0.94, 1.01))) is Verdict.UNSURE


@pytest.mark.parametrize(
    ("noise", "ends"), [((-4, 4), (-5, 5)), ((2, 4), (-5, 3)), ((-4, -2), (-3, 5)), ((0, 0), (-3, 3))]
)
def test_an_interval_includes_what_equal_cells_differ_by(noise: tuple[int, int], ends: tuple[int, int]) -> None:
    """In per cent on a logarithmic scale, where 3 and 4 make 5; each side by what noise reaches beyond 1."""
    alone = replace(interval(exp(-0.03), exp(0.03)), mid=1.0)
    found = alone.with_spread(interval(*(exp(end / 100) for end in noise)))
    assert (log(found.low), log(found.high)) == pytest.approx(tuple(end / 100 for end in ends))
    assert replace(found, low=alone.low, high=alone.high) == alone.with_spread(None)
    assert exact(1.5).with_spread(interval(0.5, 2.0)) == exact(1.5)


def first_is_slow(rng: np.random.Generator, turns: int) -> Array:
    """Of every five turns the first is 10 % slower, whoever takes it."""
    return np.asarray((1 + 0.1 * (np.arange(turns) % 5 == 0)) * np.exp(rng.normal(0, 0.01, turns)))


def every_two_rounds(rng: np.random.Generator, turns: int) -> Array:
    """A neighbour whose load comes and goes in step with rounds of five turns."""
    wave = np.sin(rng.uniform(0, 2 * np.pi) + np.pi * np.arange(turns) / 5)
    return np.asarray((1 + 0.1 * wave) * np.exp(rng.normal(0, 0.01, turns)))


@pytest.mark.parametrize("noise", [first_is_slow, every_two_rounds])
@pytest.mark.parametrize("count", [12, 40])
def test_intervals_hold_the_truth_where_noise_keeps_step_with_rounds(noise: Noise, count: int) -> None:
    """Orders that walk back and forth hold it in 2 to 60 % of runs."""
    rng = np.random.default_rng(count)
    found = [paired_interval(*sides(rounds(rng, noise, 5, count))) for _ in range(200)]
    assert sum(one is not None and one.low <= 1 <= one.high for one in found) >= 180


def sides(times: Array) -> tuple[dict[int, float], dict[int, float]]:
    """The first two columns by round."""
    one, other = (dict(enumerate(column.tolist())) for column in times.T[:2])
    return one, other


def measured(rng: np.random.Generator, noise: Noise, cells: int, speedups: Array | None = None) -> Array:
    """Times of a sweep that stops by the criterion, as a run does."""
    times = rounds(rng, noise, cells, 20) / (1.0 if speedups is None else speedups)
    measure = MeasureSpec(max_rounds=20)
    for count in range(1, 21):
        values = {str(n): dict(enumerate(column.tolist())) for n, column in enumerate(times[:count].T)}
        if Stopping(measure=measure, values=values, rounds=count).finished():
            break
    return times[:count]


def verdicts(times: Array, control: bool) -> list[Verdict]:
    """Verdicts on all columns but the first, the baseline; with `control` the last one is its A/A control."""
    base, *others = ({n: float(value) for n, value in enumerate(column)} for column in times.T)
    noise = paired_interval(base, others[-1]) if control else None
    found = [paired_interval(base, other) for other in (others[:-1] if control else others)]
    return [judge(one and one.with_spread(noise)) for one in found]


LONG = ((7, True, 1000), (2, False, 2000))


@pytest.mark.parametrize("noise", NOISES, ids=lambda noise: noise.__name__)
@pytest.mark.parametrize(
    ("cells", "control", "stores"),
    [(7, True, 300), (2, False, 300), *(pytest.param(*case, marks=pytest.mark.thorough) for case in LONG)],
)
def test_equal_cells_seldom_differ_in_a_sweep(noise: Noise, cells: int, control: bool, stores: int) -> None:
    """Five arms equal to the baseline and its control, or one arm without: any called faster or slower spoils it."""
    rng = np.random.default_rng(cells)
    spoilt = sum(any(v in MOVED for v in verdicts(measured(rng, noise, cells), control)) for _ in range(stores))
    assert spoilt / stores <= 0.05


def test_the_simulation_would_catch_a_rule_that_looks_at_the_median_alone() -> None:
    rng = np.random.default_rng(5)
    medians = [np.median(times[:, 0] / times[:, 1]) for times in (measured(rng, NOISES[1], 2) for _ in range(200))]
    assert sum(judge(interval(float(m), float(m))) in MOVED for m in medians) > 100


def test_a_real_difference_is_found() -> None:
    rng = np.random.default_rng(3)
    speedups = np.array([1.0, 1.5, 1.1, 0.9, 1.0])
    found = [verdicts(measured(rng, NOISES[0], 5, speedups), control=True) for _ in range(100)]
    expected = [Verdict.FASTER, Verdict.FASTER, Verdict.SLOWER]
    assert sum(verdict == expected for verdict in found) >= 95


def test_equal_cells_are_called_the_same_where_noise_allows() -> None:
    rng = np.random.default_rng(4)
    still = lambda rng, turns: np.exp(rng.normal(0, 0.004, turns))
    found = [verdicts(measured(rng, still, 3), control=True)[0] for _ in range(100)]
    assert found.count(Verdict.SAME) >= 95


def test_the_margin_parts_the_smallest_gain_claimed_from_none() -> None:
    """KTransformers, Fig. 14: +d at decode 1.027, 1.027 and 1.006; +c at prefill at most 1.002."""
    assert judge(interval(1.0265, 1.0275)) is Verdict.FASTER
    assert judge(interval(1.001, 1.003)) is Verdict.SAME
