"""Latencies, rates and queues of a cell that served requests, each an interval over its rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import floor
from statistics import fmean, median

from ktbench.results.intervals import Interval, summary
from ktbench.spec.record import Record
from ktbench.spec.run_spec import RunSpec
from ktbench.spec.serving.replay import Latency, Replay, expanded
from ktbench.spec.serving.stream import SloSpec

SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


@dataclass(frozen=True, kw_only=True, slots=True)
class Percentiles:
    """Percentiles over the requests of a round, in seconds; between two of them linear."""

    p50: Interval
    p90: Interval
    p99: Interval


@dataclass(frozen=True, kw_only=True, slots=True)
class Serving:
    """How a cell served: every value is the median over rounds.

    `ttft_s` is the time to the first token, `itl_s` that between two tokens (None where all answers have one),
    `end_to_end_s` that to the last. Tokens a second: of all answers, of prompts and answers, and of the median user
    while an answer comes. `goodput` are requests a second that keep the SLO, `kept` is their share; None without one.
    `waiting` is the mean number of requests that wait, over time; `cached` the share of prompt tokens that came from
    the prefix cache, `scheduler` that of scheduler and page cache in the time of steps, None where it is not known.
    """

    ttft_s: Percentiles
    itl_s: Percentiles | None
    end_to_end_s: Percentiles
    output_per_s: Interval
    total_per_s: Interval
    user_per_s: Interval | None
    goodput: Interval | None
    kept: Interval | None
    waiting: Interval
    most_waiting: Interval
    cached: Interval
    scheduler: Interval | None


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which a `share` of at least one value lies: type 7 of Hyndman and Fan (1996), as numpy's."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def serving_of(records: Sequence[Record], spec: RunSpec) -> Serving | None:
    """Over the rounds of a cell; None where it served no requests."""
    replays = {record.round: record.replay for record in records if record.replay is not None and record.samples_s}
    if not replays or spec.workload.stream is None:
        return None

    def over(value: Callable[[Replay], float]) -> Interval:
        return summary({number: value(replay) for number, replay in replays.items()}, records, spec.measure)

    def percentiles(times: Callable[[Latency], Iterable[float]]) -> Percentiles:
        found = {number: [s for one in replay.latencies for s in times(one)] for number, replay in replays.items()}
        return Percentiles(**{name: _over(found, share, records, spec) for name, share in SHARES.items()})

    shares = {number: replay.scheduler_share for number, replay in replays.items()}
    known = {number: share for number, share in shares.items() if share is not None}
    slo, speaks = spec.workload.stream.slo, all(_user_rates(replay) for replay in replays.values())
    return Serving(
        ttft_s=percentiles(lambda one: (one.ttft_s,)),
        itl_s=percentiles(lambda one: one.gaps_s) if speaks else None,
        end_to_end_s=percentiles(lambda one: (one.end_to_end_s,)),
        output_per_s=over(lambda replay: replay.output_tokens / replay.seconds),
        total_per_s=over(lambda replay: (replay.output_tokens + replay.prompt_tokens) / replay.seconds),
        user_per_s=over(lambda replay: median(_user_rates(replay))) if speaks else None,
        goodput=over(lambda replay: _kept(replay, slo) / replay.seconds) if slo.is_set else None,
        kept=over(lambda replay: _kept(replay, slo) / len(replay.requests)) if slo.is_set else None,
        waiting=over(mean_waiting),
        most_waiting=over(lambda replay: max(expanded(replay.waiting))),
        cached=over(lambda replay: sum(one.cached for one in replay.requests) / replay.prompt_tokens),
        scheduler=summary(known, records, spec.measure) if known else None,
    )


def _over(values: Mapping[int, Sequence[float]], share: float, records: Sequence[Record], spec: RunSpec) -> Interval:
    return summary({number: percentile(found, share) for number, found in values.items()}, records, spec.measure)


def _user_rates(replay: Replay) -> list[float]:
    """Tokens a second of every answer of more than one, from its first token on; tokens of one step come at once."""
    gaps = (latency.mean_gap_s for latency in replay.latencies)
    return [1 / gap for gap in gaps if gap]


def _kept(replay: Replay, slo: SloSpec) -> int:
    return sum(keeps(latency, slo) for latency in replay.latencies)


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
