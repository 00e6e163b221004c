"""What an answer is worth."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Grade:
    """The worth of an answer, 0 to 1. None is one that cannot be graded here; `why` says why it is not 1."""

    value: float | None
    why: str = ""
