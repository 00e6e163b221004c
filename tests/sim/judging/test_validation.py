"""The simulator compared with published numbers, and the statistics of its errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ktbench.results import read_published
from ktbench.run.request import read_request
from ktbench.sim.calibration import Calibration, read_calibration
from ktbench.sim.judging.fitting import STAGES, Stage, _fit, fitted_ids
from ktbench.sim.judging.published import PublishedCell, observations_of, residual, simulated_value
from ktbench.sim.judging.validation import (
    FIGURES,
    GROUPS,
    PublishedError,
    gains,
    judge,
    placement_order,
    qualities,
    quality_of,
)

ERRORS = st.lists(st.floats(min_value=-0.99, max_value=5), min_size=1, max_size=40)


@given(ERRORS)
def test_quality_is_numpys(errors: list[float]) -> None:
    found = quality_of(errors)
    off = np.abs(np.array(errors))
    assert found.cells == len(errors)
    assert found.median == pytest.approx(np.median(off))
    assert found.p90 == pytest.approx(np.percentile(off, 90))
    assert found.worst == pytest.approx(max(off))
    assert found.bias == pytest.approx(sum(errors) / len(errors), abs=1e-12)


def test_nothing_has_no_quality() -> None:
    with pytest.raises(ValueError, match="none to judge"):
        quality_of([])


@pytest.fixture(scope="module")
def observations() -> tuple[PublishedCell, ...]:
    return observations_of(read_published(*FIGURES), lambda words: read_request(words).parts[0].spec)


@pytest.fixture(scope="module")
def calibrations() -> dict[str, Calibration]:
    return {name: read_calibration(name) for name in STAGES}


@pytest.fixture(scope="module")
def errors(observations: Sequence[PublishedCell], calibrations: dict[str, Calibration]) -> tuple[PublishedError, ...]:
    return judge(observations, calibrations)


def test_held_out_cells_are_those_of_two_models(observations: Sequence[PublishedCell]) -> None:
    """120 cells of Fig. 11, 12 and 14 without repeats, 40 of them of the model that constants are fitted on."""
    fitted = fitted_ids(observations)
    whole = [one for one in observations if one.figure in ("fig11", "fig12", "fig14")]
    other = [one for one in whole if one.model != "deepseek_v3"]
    assert (len(whole), len(other)) == (120, 80)
    assert not any(one.id in fitted for one in other)
    assert not any(one.id in fitted for one in observations if one.figure in ("concurrency", "sft"))


def test_errors_stay_where_the_documentation_has_them(errors: Sequence[PublishedError]) -> None:
    """Data against data: the constants that ship, on the published numbers that ship."""
    found = {group.name: (group, quality) for group, fitted, quality in qualities(errors) if not fitted}
    for group, quality in found.values():
        if group.median is not None:
            assert quality.median <= group.median, group.name
    met = [group for group, quality in found.values() if group.p90 is not None and quality.p90 <= group.p90]
    assert len(met) >= 5  # of six: static scheduling and base on one model resist


def test_gains_are_on_the_published_side(errors: Sequence[PublishedError]) -> None:
    claim = gains(errors)
    assert (claim.right, claim.cases) == (27, 27)


def test_placements_are_in_the_published_order(errors: Sequence[PublishedError]) -> None:
    claim = placement_order(errors)
    assert claim.cases == 37
    assert claim.right >= 0.9 * claim.cases


def test_a_perfect_simulator_is_judged_perfect(
    observations: Sequence[PublishedCell], calibrations: dict[str, Calibration]
) -> None:
    few = [one for one in observations if one.figure in ("fig10", "fig12")]
    ideal = [replace(one, value=simulated_value(one, calibrations["ktransformers"])) for one in few]
    assert all(abs(one.error) < 1e-9 for one in judge(ideal, calibrations))


def test_every_group_has_cells(errors: Sequence[PublishedError]) -> None:
    assert {group.name for group, _, _ in qualities(errors)} == {group.name for group in GROUPS}


def test_a_fit_finds_constants_again(
    observations: Sequence[PublishedCell], calibrations: dict[str, Calibration]
) -> None:
    stage: Stage = next(one for one in STAGES["ktransformers"] if one.name == "PyTorch's AVX-512 kernel")
    true = calibrations["ktransformers"].changed({"base_vector_peak": 0.31})
    few = [one for one in observations if stage.selects(one)][::3]
    seen = [replace(one, value=simulated_value(one, true)) for one in few]
    found = _fit(stage, seen, calibrations["ktransformers"])
    assert found.calibration["base_vector_peak"] == pytest.approx(0.31, rel=0.02)
    assert found.rms < 0.01


def test_twice_as_slow_is_half_the_throughput(
    observations: Sequence[PublishedCell], calibrations: dict[str, Calibration]
) -> None:
    one = next(one for one in observations if one.figure == "fig12")
    mine = simulated_value(one, calibrations["ktransformers"])
    (judged,) = judge([replace(one, value=mine / 2)], calibrations)
    assert judged.error == pytest.approx(-0.5)
    assert residual(replace(one, value=mine), calibrations["ktransformers"]) == pytest.approx(0.0)


def test_a_machine_without_its_calibration_is_named(observations: Sequence[PublishedCell]) -> None:
    with pytest.raises(ValueError, match="fig3-001: no calibration"):
        judge(observations[:1], {})
