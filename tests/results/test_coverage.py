"""How often intervals of averages hold the truth: few studies of each scenario here, thousands by `nox -s coverage`."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ktbench.results.strata import Stratum
from tests.results.coverage import EQUAL, SCENARIOS, SPARSE, Scenario, clustered, of_tasks

FEW, MANY = 150, 4000


def name_of(scenario: Scenario) -> str:
    return scenario.name


@pytest.mark.parametrize("scenario", SCENARIOS, ids=name_of)
def test_intervals_hold_the_truth(scenario: Scenario) -> None:
    """95 % of 150 studies within four standard errors."""
    assert 0.88 <= scenario.coverage(FEW) <= 1.0


@pytest.mark.parametrize("scenario", EQUAL, ids=name_of)
def test_equal_cells_are_seldom_called_unequal(scenario: Scenario) -> None:
    assert scenario.false_verdicts(FEW) <= 0.12


def test_without_their_clusters_named_the_scenarios_would_fail() -> None:
    """What the cluster key is for: fives that flip together, taken as independent."""
    (named,) = [one for one in SCENARIOS if one.name == "fives"]

    def unnamed(rng: np.random.Generator) -> list[Stratum]:
        return [replace(stratum, clusters=()) for stratum in named.draw(rng)]

    assert replace(named, draw=unnamed).coverage(FEW) < 0.75


@pytest.mark.coverage
@pytest.mark.parametrize("scenario", SCENARIOS, ids=name_of)
def test_coverage_is_within_two_percent_of_95(scenario: Scenario, request: pytest.FixtureRequest) -> None:
    _require_marker(request)
    assert 0.93 <= scenario.coverage(MANY) <= 0.97


@pytest.mark.coverage
@pytest.mark.parametrize("scenario", SPARSE, ids=name_of)
def test_sparse_data_give_intervals_rather_too_wide(scenario: Scenario, request: pytest.FixtureRequest) -> None:
    _require_marker(request)
    assert scenario.coverage(MANY) >= 0.95


@pytest.mark.coverage
@pytest.mark.parametrize("scenario", EQUAL, ids=name_of)
def test_false_verdicts_are_at_most_as_many_as_said(scenario: Scenario, request: pytest.FixtureRequest) -> None:
    """At most 5 %, and two standard errors of 4,000 studies."""
    _require_marker(request)
    assert scenario.false_verdicts(MANY) <= 0.057


def _require_marker(request: pytest.FixtureRequest) -> None:
    if "coverage" not in request.config.option.markexpr:
        pytest.skip("takes minutes in all: nox -s coverage")


def test_unlike_tasks_are_not_a_special_case_of_clusters() -> None:
    assert of_tasks("fives", clustered(5, 0.65)).truth == pytest.approx(-0.3 * 0.25)
