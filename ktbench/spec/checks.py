"""Checks that the specs share."""

from __future__ import annotations


def at_least(key: str, value: float, least: float) -> None:
    """Raises ValueError where `value` is below `least`."""
    if value < least:
        raise ValueError(f"{key}={value}: must be at least {least}")
