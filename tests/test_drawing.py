"""Few cases run by default: together they meet what all cases meet."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import drawing
from tests.drawing import covering, few_of

COUNTS = st.lists(st.integers(1, 5), min_size=1, max_size=4)


@pytest.fixture(autouse=True)
def collects_thorough() -> Any:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(drawing, "collects_thorough", True)
        yield patched


def default(cases: list[Any]) -> list[tuple[Any, ...]]:
    """Values of those that are not marked as thorough."""
    return [tuple(case.values) for case in cases if not any(mark.name == "thorough" for mark in case.marks)]


@given(counts=COUNTS)
def test_each_value_is_met_in_no_more_cases_than_the_longest_parameter_needs(counts: list[int]) -> None:
    parameters = [range(count) for count in counts]
    cases = covering(product(*parameters))
    assert [tuple(case.values) for case in cases] == list(product(*parameters))
    few = default(cases)
    assert [set(column) for column in zip(*few, strict=True)] == [set(one) for one in parameters]
    assert len(few) == max(counts)


def test_pairs_are_met_where_they_act_on_each_other() -> None:
    few = default(covering(product("abc", (1, 2), "xyz"), lambda one, two, three: ((one, two), three)))
    assert {case[:2] for case in few} == {*product("abc", (1, 2))}
    assert {case[2] for case in few} == {*"xyz"}
    assert len(few) == 6


def test_skipped_cases_meet_nothing_and_say_so_by_default() -> None:
    missing = pytest.param("amx", marks=pytest.mark.skipif(True, reason="no AMX"), id="amx")
    granted = pytest.param("avx2", marks=pytest.mark.skipif(False, reason="no AVX2"), id="avx2")
    cases = covering(product((1, 2), (missing, granted)))
    assert [case.id for case in cases] == ["1-amx", "1-avx2", "2-amx", "2-avx2"]
    assert {mark.name for case in cases for mark in case.marks} == {"skipif"}


def test_what_runs_in_thorough_alone_is_not_collected_where_that_is_left_out(collects_thorough: Any) -> None:
    assert len(few_of("abc", "a")) == 3
    collects_thorough.setattr(drawing, "collects_thorough", False)
    assert [case.values for case in few_of("abc", "a")] == [("a",)]
    assert len(covering(product("abc", "xyz"))) == 3
