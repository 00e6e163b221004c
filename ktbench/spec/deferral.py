"""The rule of `deferral=auto`, used by the engine on measured steps and by the simulator on simulated ones."""

from __future__ import annotations

from collections.abc import Sequence

# At least so many of a token's experts stay immediate, for accuracy (KTransformers, section 4.2).
MIN_IMMEDIATE_EXPERTS = 2
_AS_BUSY = 0.97


def deferral_candidates(top_k: int) -> range:
    """The numbers of deferred experts to choose from: 0 to `top_k` - MIN_IMMEDIATE_EXPERTS, always 0 at least."""
    return range(max(top_k - MIN_IMMEDIATE_EXPERTS, 0) + 1)


def choose_deferral(busy_shares: Sequence[float]) -> int:
    """The smallest number of deferred experts whose host busy share is at least 0.97 of the largest.

    `busy_shares[n]` is the share of a step in which the host role runs experts, with n of them deferred; one entry for
    each of `deferral_candidates`. Raises ValueError where it is empty.
    """
    if not busy_shares:
        raise ValueError("no busy shares to choose from")
    enough = _AS_BUSY * max(busy_shares)
    return next(number for number, share in enumerate(busy_shares) if share >= enough)
