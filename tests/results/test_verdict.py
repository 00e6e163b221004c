from __future__ import annotations

import numpy as np
import pytest

from ktbench.results.intervals import Interval
from ktbench.results.speedups import Verdict, judge, paired_interval
from ktbench.results.stopping import Stopping
from tests.results.noise import NOISES, Array, Noise, rounds

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
    assert judge(speedup, noise=interval(0.99, 1.01)) is Verdict.FASTER
    assert judge(speedup, noise=interval(0.99, 1.06)) is Verdict.UNSURE
    assert judge(interval(0.90, 0.95), noise=interval(0.94, 1.01)) is Verdict.UNSURE


def measured(rng: np.random.Generator, noise: Noise, cells: int, speedups: Array | None = None) -> Array:
    """Times of a sweep that stops by the criterion, as a run does."""
    times = rounds(rng, noise, cells, 20) / (1.0 if speedups is None else speedups)
    criterion = Stopping(goal=0.05, min_rounds=6, max_rounds=20, max_minutes=1e9)
    for row in times:
        criterion.add({str(n): float(value) for n, value in enumerate(row)}, minutes=0)
        if criterion.finished():
            break
    return times[: criterion.rounds]


def verdicts(times: Array, control: bool) -> list[Verdict]:
    """Verdicts on all columns but the first, the baseline; with `control` the last one is its A/A control."""
    base, *others = ({n: float(value) for n, value in enumerate(column)} for column in times.T)
    noise = paired_interval(base, others[-1]) if control else None
    return [judge(paired_interval(base, other), noise) for other in (others[:-1] if control else others)]


@pytest.mark.parametrize("noise", NOISES, ids=lambda noise: noise.__name__)
def test_equal_cells_seldom_differ_in_a_sweep(noise: Noise) -> None:
    """Five arms equal to the baseline, and its control: any of them called faster or slower spoils the store."""
    rng = np.random.default_rng(1)
    stores = 1000
    spoilt = sum(any(v in MOVED for v in verdicts(measured(rng, noise, 7), control=True)) for _ in range(stores))
    assert spoilt / stores <= 0.05


@pytest.mark.parametrize("noise", NOISES, ids=lambda noise: noise.__name__)
def test_two_equal_cells_seldom_differ_without_a_control(noise: Noise) -> None:
    rng = np.random.default_rng(2)
    stores = 2000
    spoilt = sum(any(v in MOVED for v in verdicts(measured(rng, noise, 2), control=False)) for _ in range(stores))
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
