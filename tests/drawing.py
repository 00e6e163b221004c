"""How many examples a property test draws."""

from __future__ import annotations

from hypothesis import settings

_FEW = 20  # what the default profile of tests/conftest.py draws


def examples(few: int) -> settings:
    """Draw so many by default, and in `nox -s fuzz` as many more as its profile has more: for a test of many cases."""
    return settings(max_examples=max(few, settings.default.max_examples * few // _FEW))
