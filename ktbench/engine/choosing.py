"""What `deferral=auto` means."""

from __future__ import annotations

from collections.abc import Sequence

# Immediate experts that are left at least, for accuracy (KTransformers, section 4.2).
LEAST_ON_TIME = 2
_AS_GOOD = 0.97


def choose_deferral(busy: Sequence[float]) -> int:
    """The smallest number of deferred experts that keeps the host role about as busy as any.

    `busy` has its busy share of the step for 0, 1, 2, ... deferred experts. Raises ValueError where it is empty.
    """
    if not busy:
        raise ValueError("no busy shares to choose from")
    enough = _AS_GOOD * max(busy)
    return next(number for number, share in enumerate(busy) if share >= enough)


def told(busy: Sequence[float]) -> str:
    """The choice and what it rests on, in a sentence."""
    shares = ", ".join(f"{share:.0%}" for share in busy)
    return (
        f"deferral=auto chose {choose_deferral(busy)}: host role busy {shares} of the step at N = 0 to {len(busy) - 1}"
    )
