"""Flips and score intervals against published examples, and against what the methods promise."""

from __future__ import annotations

from math import comb

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ktbench.results.proportions import normal_quantile, student_quantile, tango_interval, wilson_interval
from ktbench.results.scores import Flips, flips_of, pairs_of


def test_only_questions_that_both_answered_are_paired() -> None:
    before = {"a": 1.0, "b": 0.0, "c": 1.0, "only before": 1.0}
    after = {"c": 0.0, "a": 1.0, "only after": 1.0, "b": 1.0}
    assert pairs_of(before, after) == ((1.0, 1.0), (0.0, 1.0), (1.0, 0.0))
    assert flips_of(pairs_of(before, after)) == Flips(lost=1, gained=1)


def test_partly_right_answers_flip_where_their_score_moves() -> None:
    assert flips_of([(0.5, 0.4), (0.2, 0.9), (1.0, 0.99), (0.3, 0.3)]) == Flips(lost=2, gained=1)


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
    ("lost", "gained", "n", "confidence", "low", "high"),
    [
        (7, 1, 21, 0.95, -0.517, -0.026),  # Fagerland, Lydersen and Laake, Stat. Med. 33 (2014) 2850
        (2, 12, 50, 0.95, 0.0611, 0.3447),  # Newcombe, Stat. Med. 17 (1998) 2635
        (25, 28, 618, 0.90, -0.0148, 0.0247),  # R, PropCIs::scoreci.mp
    ],
)
def test_tango_gives_the_published_intervals(
    lost: int, gained: int, n: int, confidence: float, low: float, high: float
) -> None:
    found = tango_interval(lost, gained, n, confidence)
    places = 3 if n == 21 else 4
    assert tuple(round(end, places) for end in found) == (low, high)


def test_tango_without_a_flip_still_has_a_width() -> None:
    z2 = normal_quantile() ** 2
    low, high = tango_interval(0, 0, 100)
    assert high == pytest.approx(z2 / (100 + z2))
    assert low == pytest.approx(-high)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 60), st.integers(0, 60), st.integers(0, 200))
def test_tango_is_a_mirror_and_holds_the_difference(lost: int, gained: int, kept: int) -> None:
    n = max(1, lost + gained + kept)
    low, high = tango_interval(lost, gained, n)
    assert -1 <= low <= (gained - lost) / n <= high <= 1
    assert tango_interval(gained, lost, n) == pytest.approx((-high, -low), abs=1e-9)


@pytest.mark.parametrize("p", [0.02, 0.2])
def test_tango_covers_the_truth(p: float) -> None:
    """Chance that the interval holds the true difference, summed over all outcomes of 40 questions; few flips: more."""
    n, up, down = 40, p, p / 2
    covered = 0.0
    for lost in range(n + 1):
        for gained in range(n + 1 - lost):
            chance = (
                comb(n, lost)
                * comb(n - lost, gained)
                * down**lost
                * up**gained
                * (1 - up - down) ** (n - lost - gained)
            )
            if chance > 1e-7:
                low, high = tango_interval(lost, gained, n)
                covered += chance * (low <= up - down <= high)
    assert covered >= 0.94


@pytest.mark.parametrize(
    ("right", "n", "low", "high"),
    # Newcombe, Stat. Med. 17 (1998) 857, table I, method 3.
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_gives_the_published_intervals(right: int, n: int, low: float, high: float) -> None:
    assert wilson_interval(right, n) == pytest.approx((low, high), abs=5e-5)
    assert wilson_interval(n - right, n) == pytest.approx((1 - high, 1 - low), abs=5e-5)


@pytest.mark.parametrize("counts", [(-1, 0, 10), (6, 5, 10), (0, 0, 0)])
def test_counts_that_no_sample_has_are_refused(counts: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="at most n"):
        tango_interval(*counts)


@pytest.mark.parametrize("counts", [(-1, 10), (11, 10), (0, 0)])
def test_wilson_refuses_them_too(counts: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="right="):
        wilson_interval(*counts)


@pytest.mark.parametrize(
    ("df", "quantile"), [(1, 12.706), (2, 4.303), (3, 3.182), (10, 2.228), (30, 2.042), (100, 1.984), (5000, 1.960)]
)
def test_student_gives_the_tables(df: int, quantile: float) -> None:
    assert round(student_quantile(df), 3) == quantile


def test_student_needs_a_degree_of_freedom() -> None:
    with pytest.raises(ValueError, match="degree of freedom"):
        student_quantile(0)
