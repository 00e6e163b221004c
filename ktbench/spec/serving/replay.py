"""One replay of a stream, as it is logged: every token by the step that gave it, and the latencies that follow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, pairwise

from ktbench.spec.errors import fields_at_least

# (value, how many times in a row).
Runs = tuple[tuple[int, int], ...]


def runs_of(values: Iterable[int]) -> Runs:
    """Values with how many times each comes in a row."""
    return tuple((value, sum(1 for _ in same)) for value, same in groupby(values))


def expanded(runs: Runs) -> Iterator[int]:
    """The values that `runs_of` was given."""
    return (value for value, times in runs for _ in range(times))


def spans_of(numbers: Iterable[int]) -> Runs:
    """Growing numbers as (first, how many follow each other): a request that gets a token a step has one span."""
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and sum(found[-1]) == number:
            found[-1] = (found[-1][0], found[-1][1] + 1)
        else:
            found.append((number, 1))
    return tuple(found)


@dataclass(frozen=True, kw_only=True, slots=True)
class ServedRequest:
    """One request of a replay. `arrived_s` counts from the begin of the replay, `prompt` all tokens of its prompt.

    `cached` of these came from the prefix cache. `token_steps` are the numbers of the steps that gave its tokens (see
    `spans_of`).
    """

    arrived_s: float
    prompt: int
    token_steps: Runs
    cached: int = 0

    def __post_init__(self) -> None:
        fields_at_least(self, 0, "arrived_s", "prompt", "cached")
        if not self.token_steps:
            raise ValueError("ServedRequest.token_steps: an answer has one token at least")

    @property
    def tokens(self) -> int:
        """Tokens of the answer."""
        return sum(count for _, count in self.token_steps)

    @property
    def steps(self) -> Iterator[int]:
        """The number of the step that gave each token."""
        return (first + number for first, count in self.token_steps for number in range(count))

    @property
    def last_step(self) -> int:
        """The step that gave the last token."""
        first, count = self.token_steps[-1]
        return first + count - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Latency:
    """Of one request in seconds: to the first token, between tokens, and to the last, all from its arrival on."""

    ttft_s: float
    gaps_s: tuple[float, ...]
    end_to_end_s: float

    @property
    def mean_gap_s(self) -> float | None:
        """Time per output token after the first; None of an answer of one token."""
        return sum(self.gaps_s) / len(self.gaps_s) if self.gaps_s else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Replay:
    """Requests in the order of the stream. `ends_s` has the end of each step in seconds from the begin of the replay.

    `waiting` and `running` are how many requests did after each step (see `runs_of`); requests that the engine would
    not take yet count as waiting. Steps after which nothing had changed are left out. `scheduler_share` is that of the
    engine's scheduler and page cache in the time of its steps, None where the engine does not say.
    """

    ends_s: tuple[float, ...]
    waiting: Runs
    running: Runs
    requests: tuple[ServedRequest, ...]
    scheduler_share: float | None = None

    def __post_init__(self) -> None:
        if not self.requests or not self.ends_s:
            raise ValueError("Replay: has no requests or no steps")
        if any(after < before for before, after in pairwise((0.0, *self.ends_s))):
            raise ValueError("Replay.ends_s: must not go back")
        for name in ("waiting", "running"):
            if sum(times for _, times in getattr(self, name)) != len(self.ends_s):
                raise ValueError(f"Replay.{name}: must have a number for each step")
        if max(request.last_step for request in self.requests) >= len(self.ends_s):
            raise ValueError("Replay.requests: a token is of a step that is not there")

    @property
    def seconds(self) -> float:
        """From the begin to the last token."""
        return self.ends_s[-1]

    @property
    def output_tokens(self) -> int:
        """Tokens of all answers."""
        return sum(request.tokens for request in self.requests)

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts."""
        return sum(request.prompt for request in self.requests)

    @property
    def latencies(self) -> tuple[Latency, ...]:
        """Those of every request, in the order of the stream."""
        return tuple(map(self._latency, self.requests))

    def _latency(self, request: ServedRequest) -> Latency:
        at_s = [self.ends_s[step] for step in request.steps]
        return Latency(
            ttft_s=at_s[0] - request.arrived_s,
            gaps_s=tuple(after - before for before, after in pairwise(at_s)),
            end_to_end_s=at_s[-1] - request.arrived_s,
        )

    def samples_s(self, blocks: int, *, is_open: bool) -> tuple[float, ...]:
        """Seconds per output token of each of so many blocks of requests.

        Closed loop: the time in which so many requests were answered, over the tokens that came in it. Open loop, where
        the arrivals decide that time: the time that requests took from arrival to last token, over their tokens (the
        normalised latency of Yu et al., Orca, OSDI 2022, over a block).
        """
        return self._as_users_see(blocks) if is_open else self._as_they_pass(blocks)

    def _as_users_see(self, blocks: int) -> tuple[float, ...]:
        ends = _parts(len(self.requests), blocks)
        order = sorted(zip(self.requests, self.latencies, strict=True), key=lambda pair: pair[0].arrived_s)
        return tuple(
            sum(latency.end_to_end_s for _, latency in order[begin:end])
            / sum(request.tokens for request, _ in order[begin:end])
            for begin, end in pairwise((0, *ends))
        )

    def _as_they_pass(self, blocks: int) -> tuple[float, ...]:
        last = sorted(request.last_step for request in self.requests)
        ends = [last[end - 1] for end in _parts(len(last), blocks)]
        tokens = self._tokens_by_step()
        seconds = [0.0, *(self.ends_s[end] for end in ends)]
        counts = [0, *(tokens[end] for end in ends)]
        return tuple(
            (end_s - begin_s) / (after - before)
            for (begin_s, end_s), (before, after) in zip(pairwise(seconds), pairwise(counts), strict=True)
        )

    def _tokens_by_step(self) -> Sequence[int]:
        """Tokens of all answers up to and with each step."""
        found = [0] * len(self.ends_s)
        for request in self.requests:
            for step in request.steps:
                found[step] += 1
        return list(accumulate(found))


def _parts(count: int, parts: int) -> list[int]:
    """The ends of so many parts of about equal size."""
    return [count * (number + 1) // parts for number in range(parts)]
