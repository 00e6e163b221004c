"""Whether a speed-up is one. Every verdict begins unsure and needs the whole interval."""

from __future__ import annotations

from enum import StrEnum

from ktbench.results.stats.intervals import Interval

# The smallest step that the paper's breakdown claims is 1.027 (+d, decode) and the largest that it calls none is 1.002
# (+c, prefill); 2 % parts the two. It also covers what the place of a cell in its round can do to it.
MARGIN = 0.02


class Verdict(StrEnum):
    """What an interval of speed-ups allows to say."""

    UNSURE = "unsure"
    FASTER = "faster"
    SLOWER = "slower"
    SAME = "same"


def judge(speedup: Interval | None, noise: Interval | None = None, margin: float = MARGIN) -> Verdict:
    """The verdict on a speed-up (1 means equal).

    `noise` is the interval of the A/A control in the same rounds: what equal cells differ by. FASTER and SLOWER need
    the whole interval beyond both the margin and that noise; SAME needs it within the margin. The margin is a ratio:
    from 1 / (1 + margin) to 1 + margin, so that exchanging two cells exchanges FASTER and SLOWER and nothing else.
    """
    if speedup is None or not speedup.sound:
        return Verdict.UNSURE
    least, most = 1 / (1 + margin), 1 + margin
    if least <= speedup.low and speedup.high <= most:
        return Verdict.SAME
    if speedup.low > max(most, noise.high if noise else most):
        return Verdict.FASTER
    if speedup.high < min(least, noise.low if noise else least):
        return Verdict.SLOWER
    return Verdict.UNSURE
