"""Percentiles, SLOs and queues of a replay of requests."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor
from statistics import fmean

from ktbench.spec.serving.replay import Latency, Replay, expanded
from ktbench.spec.serving.stream import SloSpec

SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which a `share` of at least one value lies: type 7 of Hyndman and Fan (1996), as numpy's."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def keeps(latency: Latency, slo: SloSpec) -> bool:
    """Whether a request keeps an SLO; an answer of one token has no time between tokens to exceed."""
    first = slo.ttft_s is None or latency.ttft_s <= slo.ttft_s
    return first and (slo.itl_s is None or (latency.mean_gap_s or 0.0) <= slo.itl_s)


def mean_waiting(replay: Replay) -> float:
    """Requests that waited, weighted by time: what was seen after a step holds until the next one ends."""
    if len(replay.ends_s) == 1:
        return fmean(expanded(replay.waiting))
    spans = (after - before for before, after in zip(replay.ends_s, replay.ends_s[1:], strict=False))
    return sum(n * s for n, s in zip(expanded(replay.waiting), spans, strict=False)) / (
        replay.ends_s[-1] - replay.ends_s[0] or 1.0
    )
