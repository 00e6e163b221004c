"""Calibrations: the shipped ones, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from ktbench.sim.calibration import Calibration, calibration_names, read_calibration
from ktbench.spec.wire import from_plain


def calibration(**constants: dict[str, Any]) -> Calibration:
    whole = {
        name: {"value": 1.0, "unit": "ms", "origin": "prior", "source": "made up for a test"} | constant
        for name, constant in constants.items()
    }
    return from_plain({"name": "mine", "title": "Mine", "constants": whole}, Calibration)


def test_there_is_one_for_each_engine() -> None:
    assert set(calibration_names()) >= {"ktbench", "ktransformers"}


@pytest.mark.parametrize("name", calibration_names())
def test_shipped_constants_have_a_source_and_keep_to_their_bounds(name: str) -> None:
    shipped = read_calibration(name)
    assert shipped.name == name
    for constant in shipped.constants.values():
        assert constant.source.strip()
        low, high = constant.low or 0.0, float("inf") if constant.high is None else constant.high
        assert low <= constant.value <= high
        assert constant.origin != "fitted" or (constant.low is not None and constant.high is not None)


@pytest.mark.parametrize("name", calibration_names())
def test_shares_of_a_peak_are_shares(name: str) -> None:
    shares = [one.value for one in read_calibration(name).constants.values() if one.unit.startswith("of ")]
    assert shares
    assert all(0 < share <= 1 for share in shares)


def test_a_changed_one_is_another() -> None:
    was = calibration(call_ms={}, sync_ms={})
    now = was.changed({"call_ms": 3.0})
    assert (was["call_ms"], now["call_ms"], now["sync_ms"]) == (1.0, 3.0, 1.0)
    assert now.constants["call_ms"].source == was.constants["call_ms"].source


@pytest.mark.parametrize(
    ("constant", "said"),
    [
        ({"value": "much"}, "value: expected float, got str"),
        ({"origin": "guess"}, "origin: invalid enum value 'guess'"),
        ({"value": -1.0}, "calibration mine: call_ms=-1.0: must be at least 0"),
        ({"value": float("nan")}, "call_ms"),
        *[({"source": source}, "calibration mine: call_ms has no source") for source in ("", "  ")],
    ],
)
def test_a_wrong_field_is_refused_by_name(constant: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        calibration(call_ms=constant)


def test_a_change_is_checked_and_a_constant_that_is_not_there_is_named() -> None:
    mine = calibration(call_ms={})
    with pytest.raises(ValueError, match="call_ms=-2.0"):
        mine.changed({"call_ms": -2.0})
    with pytest.raises(ValueError, match="calibration mine: no_such is missing"):
        mine.changed({"no_such": 1.0})
    with pytest.raises(ValueError, match="calibration mine: sync_ms is missing"):
        mine["sync_ms"]


def test_an_unknown_calibration_is_refused_with_those_allowed() -> None:
    with pytest.raises(ValueError, match=r"machine.calibration=nobody: unknown.*allowed are .*ktbench, ktransformers"):
        read_calibration("nobody")
