"""What the counters say that a cell ran while it answered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ktbench.spec.scored import Asked


def work_done(ends: Sequence[Asked]) -> str:
    """Counters of the features asked for over all tasks, and how many answers were known from before; empty without.

    What was known was not computed again, so no counter moved for it.
    """
    moved: Counter[str] = Counter()
    for evidence in (evidence for end in ends for evidence in end.evidence):
        if evidence.wanted and evidence.seen is not None:
            moved[evidence.counter] += evidence.seen
    requests, cached = sum(end.requests for end in ends), sum(end.cached for end in ends)
    said = [f"{name} {count:,}" for name, count in moved.items()]
    said += [f"{cached:,} of {requests:,} requests known from before"] if cached else []
    return ", ".join(said)
