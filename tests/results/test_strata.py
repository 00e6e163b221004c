"""Intervals of proportions and of their differences: as published, by their definition, and by what they cover."""

from __future__ import annotations

from math import comb, log, sqrt

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from ktbench.results.strata import Stratum, ends_of_average, normal_quantile, student_quantile, wilson_interval


def tango_interval(lost: int, gained: int, n: int) -> tuple[float, float]:
    """That of one task without clusters."""
    values = (*[-1.0] * lost, *[1.0] * gained, *[0.0] * (n - lost - gained))
    found = ends_of_average([Stratum(share=1.0, values=values)], -1.0)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("lost", "gained", "n", "low", "high"),
    [
        (7, 1, 21, -0.517, -0.026),  # Fagerland, Lydersen and Laake, Stat. Med. 33 (2014) 2850
        (2, 12, 50, 0.0611, 0.3447),  # Newcombe, Stat. Med. 17 (1998) 2635
    ],
)
def test_tango_gives_the_published_intervals(lost: int, gained: int, n: int, low: float, high: float) -> None:
    found = tango_interval(lost, gained, n)
    places = 3 if n == 21 else 4
    assert tuple(round(end, places) for end in found) == (low, high)


@pytest.mark.parametrize(("lost", "gained", "n"), [(25, 28, 618), (7, 1, 21), (3, 40, 90)])
def test_the_ends_of_tango_are_where_the_score_of_the_likeliest_probabilities_is_as_rare(
    lost: int, gained: int, n: int
) -> None:
    """The definition: probabilities that maximise the likelihood under the difference, found by search."""
    for end in tango_interval(lost, gained, n):

        def against(loss: float, end: float = end) -> float:
            chances = (loss, loss + end, 1 - 2 * loss - end)
            counts = zip((lost, gained, n - lost - gained), chances, strict=True)
            return -sum(count * log(chance) for count, chance in counts)

        least, most = max(0.0, -end), (1 - end) / 2
        loss = minimize_scalar(
            against, bounds=(least + 1e-9, most - 1e-9), method="bounded", options={"xatol": 1e-12}
        ).x
        score = (gained - lost - n * end) / sqrt(n * (2 * loss + end - end * end))
        assert abs(score) == pytest.approx(normal_quantile(), rel=1e-4)


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


@pytest.mark.parametrize(
    ("df", "quantile"), [(1, 12.706), (2, 4.303), (3, 3.182), (10, 2.228), (30, 2.042), (100, 1.984), (5000, 1.960)]
)
def test_student_gives_the_tables(df: int, quantile: float) -> None:
    assert round(student_quantile(df), 3) == quantile
