"""What is asked of an engine that serves many requests at once, and what it gives back after every step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf, isfinite
from typing import Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

# Why an answer ended: by a token that ends it, by its length, taken back, or by an error of the engine.
Finish = Literal["stop", "length", "cancelled", "error"]
# Tokens with the natural logarithms of their probabilities, from the likeliest down.
Top = tuple[tuple[int, float], ...]


class QueueFull(Exception):
    """As many requests wait as may; the text says how many."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """How the tokens of one answer are chosen: the likeliest at temperature 0, else drawn.

    First `logit_bias`, pairs of token and number, is added to logits. Logits of tokens that the prompt or the answer
    has are divided by `repetition_penalty`, or multiplied where they are below 0 (Keskar 2019). Those of tokens that
    the answer has are reduced by `presence_penalty`, and by `frequency_penalty` times how often. Before `min_tokens`
    are there, no token that ends the answer is chosen.

    After division by the temperature those tokens are left whose probability is at least `min_p` of the largest
    (Nguyen 2024), of these the `top_k` likeliest (0: all), and of these, from the largest down, those that reach
    `top_p` of the probability first (Holtzman 2020). The numbers drawn depend on `seed` alone, whatever else is in the
    batch.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    repetition_penalty: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    min_tokens: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.repetition_penalty < inf:
            raise ValueError(f"repetition_penalty={self.repetition_penalty}: must be above 0")
        if not 0 <= self.temperature < inf:
            raise ValueError(f"temperature={self.temperature}: must be 0 or above")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p={self.top_p}: allowed are values above 0 up to 1")
        if not 0 <= self.min_p <= 1:
            raise ValueError(f"min_p={self.min_p}: allowed are 0 to 1")
        for name in ("top_k", "min_tokens"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)}: must be 0 or more")
        for name in ("presence_penalty", "frequency_penalty"):
            if not isfinite(getattr(self, name)):
                raise ValueError(f"{name}={getattr(self, name)}: must be a finite number")

    @property
    def changes_logits(self) -> bool:
        """Whether logits are changed before a token is chosen."""
        return bool(self.repetition_penalty != 1 or self.presence_penalty or self.frequency_penalty or self.logit_bias)

    @property
    def keeps_all(self) -> bool:
        """Whether every token may be drawn."""
        return self.top_p == 1 and not self.top_k and not self.min_p


@dataclass(frozen=True, kw_only=True, slots=True)
class ServeRequest:
    """A prompt to continue by at most `max_new` tokens; `key` is the caller's name of it, unique while it runs.

    An answer ends with the first token of `stop_ids`, which is part of it. `logprobs` asks for the natural logarithm of
    the probability of each new token and of so many of the likeliest ones, `prompt_logprobs` for the same of the tokens
    of the prompt. Probabilities are those of the logits, before temperature, top_p and repetition penalty. `logits`
    asks for the logits themselves.

    `forced` are the tokens of the answer whatever the logits say. Such a request is what others are compared with: it
    takes nothing from the prefix cache, and leaves nothing there.
    """

    key: str
    prompt: tuple[int, ...]
    max_new: int
    sampling: Sampling = field(default_factory=Sampling)
    stop_ids: frozenset[int] = frozenset()
    logprobs: int | None = None
    prompt_logprobs: bool = False
    logits: bool = False
    forced: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.prompt:
            raise ValueError(f"request {self.key}: has no tokens, at least one is needed")
        if self.max_new < 1:
            raise ValueError(f"request {self.key}: max_new={self.max_new}, must be 1 or more")
        if self.logprobs is not None and self.logprobs < 0:
            raise ValueError(f"request {self.key}: logprobs={self.logprobs}, must be 0 or more")
        if self.prompt_logprobs and self.logprobs is None:
            raise ValueError(f"request {self.key}: prompt_logprobs=True, logprobs must say how many")
        if self.forced and len(self.forced) != self.max_new:
            raise ValueError(f"request {self.key}: {len(self.forced)} tokens are forced, max_new={self.max_new}")


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenEvent:
    """One new token of a request; or, with `token` None, its end without one.

    `finish` is set on the last event of a request, `why` says more where it is `error`. `logprob` and `top`, pairs of
    token and log-probability from the likeliest down, are there where the request asked for them. `cached_tokens` is
    how many tokens of the prompt came from the prefix cache. Where the request asked for them, its first event has
    `prompt_logprobs`: for each token of the prompt but the first its log-probability and the likeliest in its place.
    `logits` [vocabulary] are those that the token was chosen by, where the request asked for them.
    """

    key: str
    token: int | None
    finish: Finish | None = None
    why: str = ""
    logprob: float | None = None
    top: Top = ()
    cached_tokens: int = 0
    prompt_logprobs: tuple[tuple[float, Top], ...] = ()
    logits: NDArray[np.float32] | None = field(default=None, compare=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class ServingState:
    """Where an engine stands: requests that wait and that run, and pages of keys and values.

    Pages that only the prefix cache holds are `cached`; they count as neither used nor free.
    """

    waiting: int
    running: int
    pages: int
    free_pages: int
    cached_pages: int
    page_tokens: int


class ServingEngine(Protocol):
    """An engine that serves requests step by step. One thread calls it; it has none of its own to answer from."""

    def submit(self, request: ServeRequest) -> None:
        """Queue a request. Raises QueueFull, and ValueError for one that can never run, with the reason."""

    def cancel(self, key: str) -> None:
        """Take a request back: its pages are free before the next step. Nothing is done for one that has ended."""

    def step(self) -> list[TokenEvent]:
        """One iteration: what all running requests gained in it. Empty where there is nothing to do."""

    @property
    def state(self) -> ServingState:
        """Where it stands between two steps."""

    @property
    def max_positions(self) -> int:
        """The most tokens that prompt and answer of one request may have together."""

    def counters(self) -> Mapping[str, int]:
        """Cumulative counts by the names of the feature table, and others."""

    def notes(self) -> tuple[str, ...]:
        """Remarks on how it runs, such as the settings that it was tuned to."""

    def close(self) -> None:
        """Release weights, threads and files; what the disk level holds stays usable."""


@runtime_checkable
class TieredCache(Protocol):
    """An engine whose prefix cache has levels of its own."""

    def move_cached(self, *, to_disk: bool) -> None:
        """Moves pages that only the prefix cache holds to memory, and those in memory on to the disk; waits for it."""

    def forget_cached(self) -> None:
        """Drops what only the prefix cache holds, on the device and in memory; what the disk holds stays."""
