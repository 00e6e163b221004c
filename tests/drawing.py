"""What of a test's cases runs by default: how many examples a property test draws, which values a parameter takes."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest
from hypothesis import settings

_FEW = 20  # what the default profile of tests/conftest.py draws


def examples(few: int) -> settings:
    """Draw so many by default, and in `nox -s fuzz` as many more as its profile has more: for a test of many cases."""
    return settings(max_examples=max(few, settings.default.max_examples * few // _FEW))


def few_of(values: Iterable[Any], few: Collection[Any]) -> list[Any]:
    """All values of a parameter, of which `few` run by default and the others in `nox -s thorough`."""
    values = list(values)
    assert few and all(value in values for value in few), "a case that is misspelt would run nowhere by default"
    return [value if value in few else pytest.param(value, marks=pytest.mark.thorough) for value in values]
