"""Errors that are the user's to mend, and what errors say in one line."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def at_least(key: str, value: float, least: float) -> None:
    """Raises ValueError where `value` is below `least`."""
    if value < least:
        raise ValueError(f"{key}={value}: must be at least {least}")


def did_you_mean(word: str, allowed: Iterable[str], cutoff: float = 0.5) -> str:
    """`, did you mean X?` with the closest of the allowed words; empty where none is close."""
    close = get_close_matches(word, list(allowed), n=1, cutoff=cutoff)
    return f", did you mean {close[0]}?" if close else ""


# Exit codes of a command, and of a process that carries out a part of one.
BAD_REQUEST, FAILED, INTERRUPTED = 2, 4, 130


class RequestError(ValueError):
    """The request cannot be carried out as written: one line that says what, where and what is allowed."""


def said(error: Exception) -> str:
    """What an error says, in the words of the system and with the file, where it is about one."""
    if not isinstance(error, OSError) or not error.strerror:
        return str(error)
    return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
