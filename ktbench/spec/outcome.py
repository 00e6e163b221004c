"""How a cell can end. Failure is a value; only OK and NOISY hold samples that may be shown as the cell's speed."""

from __future__ import annotations

from enum import StrEnum


class Outcome(StrEnum):
    """End of one turn of a cell, or of the cell as a whole."""

    OK = "OK"
    NOISY = "NOISY"  # the ceiling on rounds or time was hit before the interval closed
    IDLE = "IDLE"  # a feature asked for did not engage, or one not asked for did
    UNSUPPORTED = "UNSUPPORTED"  # this machine or engine cannot run it; the reason says what is missing
    WRONG = "WRONG"  # the output differs from the float32 reference
    VACUOUS = "VACUOUS"  # the check could not have failed: it let a mutant pass
    CRASHED = "CRASHED"
    TIMEOUT = "TIMEOUT"
    NO_MEMORY = "NO_MEMORY"

    @property
    def timed(self) -> bool:
        """Whether samples under this outcome may be shown as the cell's speed."""
        return self in (Outcome.OK, Outcome.NOISY)
