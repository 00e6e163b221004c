"""Draws the stream of a serving benchmark: when each request arrives, its tokens, and how long its answer is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log

import numpy as np
from numpy.typing import NDArray

from ktbench.engine.workload.stream_traces import TraceRequest, read_stream_trace
from ktbench.spec.run_spec import WorkloadSpec
from ktbench.spec.serving.stream import StreamSpec

# Each kind of number has a generator of its own, so that a change of one leaves the others as they were.
_SHARED, _TOKENS, _PROMPTS, _ANSWERS, _GAPS, _BLOCK = range(6)
MOONCAKE_BLOCK = 512  # tokens that a hash of the Mooncake traces stands for


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamRequest:
    """One request: the tokens that it adds to what was said so far, and the number of tokens of its answer.

    `arrival_s` counts from the begin of a replay, None in a closed loop. A turn of a conversation comes `after` the
    request of that number, whose prompt and answer are in front of its `tokens`.
    """

    tokens: tuple[int, ...]
    answer: int
    arrival_s: float | None = None
    after: int | None = None


def draw_stream(work: WorkloadSpec, vocab: int) -> tuple[StreamRequest, ...]:
    """The requests in the order in which they arrive: equal arguments give equal ones on any machine.

    Of conversations all first turns come before all second ones. Raises ValueError for a trace that cannot be read, or
    has too few requests.
    """
    stream = work.stream
    assert stream is not None
    trace = None if stream.trace is None else read_stream_trace(stream.trace, stream.requests)
    prompts, answers = _lengths(work, stream, trace)
    tokens = _token_ids(work, stream, trace, prompts, vocab)
    arrivals = _arrivals(work, stream, trace)
    sessions = stream.requests // stream.turns
    return tuple(
        StreamRequest(
            tokens=tokens[number],
            answer=answers[number],
            arrival_s=None if arrivals is None else float(arrivals[number]),
            after=number - sessions if number >= sessions else None,
        )
        for number in range(stream.requests)
    )


def longest_request(stream: Sequence[StreamRequest]) -> int:
    """The most tokens that prompt and answer of a request have together."""
    totals: list[int] = []
    for request in stream:
        before = 0 if request.after is None else totals[request.after]
        totals.append(before + len(request.tokens) + request.answer)
    return max(totals)


def _random(work: WorkloadSpec, *kind: int) -> np.random.Generator:
    return np.random.default_rng([work.seed, *kind])


def _lengths(
    work: WorkloadSpec, stream: StreamSpec, trace: Sequence[TraceRequest] | None
) -> tuple[list[int], list[int]]:
    """Tokens of every prompt and answer, at least one and at most the longest."""
    if trace is None:
        count = stream.requests
        prompts = log_normal(_random(work, _PROMPTS), work.prompt, stream.prompt_sigma, count)
        answers = log_normal(_random(work, _ANSWERS), stream.answer, stream.answer_sigma, count)
    else:
        prompts = np.array([one.prompt for one in trace], dtype=np.int64)
        answers = np.array([one.answer for one in trace], dtype=np.int64)
    return _clip(prompts, stream.longest_prompt), _clip(answers, stream.longest_answer)


def log_normal(random: np.random.Generator, mean: float, sigma: float, count: int) -> NDArray[np.int64]:
    """Rounded numbers [count] of a log-normal distribution: exp(N(ln(mean) - sigma²/2, sigma²)) has that mean."""
    drawn = np.exp(random.normal(log(mean) - sigma**2 / 2, sigma, size=count))
    return np.rint(np.minimum(drawn, np.iinfo(np.int32).max)).astype(np.int64)


def _clip(lengths: NDArray[np.int64], longest: int | None) -> list[int]:
    found: list[int] = np.clip(lengths, 1, longest).tolist()
    return found


def _arrivals(
    work: WorkloadSpec, stream: StreamSpec, trace: Sequence[TraceRequest] | None
) -> NDArray[np.float64] | None:
    """Seconds from the begin [requests], the first request at 0; None in a closed loop."""
    if not stream.is_open:
        return None
    if stream.arrivals == "trace":
        assert trace is not None
        return np.array([one.arrival_s - trace[0].arrival_s for one in trace]) * stream.time_scale
    gaps = gamma_gaps(_random(work, _GAPS), stream.rate, stream.burstiness, stream.requests - 1)
    return np.concatenate([[0.0], np.cumsum(gaps)])


def gamma_gaps(random: np.random.Generator, rate: float, shape: float, count: int) -> NDArray[np.float64]:
    """Seconds [count] between arrivals: mean 1 / `rate`, coefficient of variation 1 / sqrt(`shape`); 1 is Poisson's."""
    return random.gamma(shape, 1 / (rate * shape), size=count)


def _token_ids(
    work: WorkloadSpec, stream: StreamSpec, trace: Sequence[TraceRequest] | None, prompts: Sequence[int], vocab: int
) -> list[tuple[int, ...]]:
    """New tokens of every request; those of a first turn begin with what all have in common."""
    shared = _random(work, _SHARED).integers(vocab, size=stream.shared_prefix).tolist()
    sessions = stream.requests // stream.turns
    random, found = _random(work, _TOKENS), []
    for number, length in enumerate(prompts):
        blocks = [] if trace is None else _blocks(work, trace[number].blocks, vocab)[:length]
        own = random.integers(vocab, size=length).tolist()
        found.append((*(shared if number < sessions else ()), *blocks, *own[len(blocks) :]))
    return found


def _blocks(work: WorkloadSpec, hashes: Sequence[int], vocab: int) -> list[int]:
    """Tokens of the blocks that hashes stand for: equal hashes give equal tokens."""
    return [
        token
        for block in hashes
        for token in _random(work, _BLOCK, block).integers(vocab, size=MOONCAKE_BLOCK).tolist()
    ]
