"""Errors that are the user's to mend, and what errors say in one line."""

from __future__ import annotations


def at_least(key: str, value: float, least: float) -> None:
    """Raises ValueError where `value` is below `least`."""
    if value < least:
        raise ValueError(f"{key}={value}: must be at least {least}")


class RequestError(ValueError):
    """The request cannot be carried out as written: one line that says what, where and what is allowed."""


def said(error: Exception) -> str:
    """What an error says, in the words of the system and with the file, where it is about one."""
    if not isinstance(error, OSError) or not error.strerror:
        return str(error)
    return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
