"""What is asked of an engine that serves many requests at once, and what it gives back after every step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
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

    Of the tokens those are left whose probabilities, from the largest down, reach `top_p` first (Holtzman 2020). The
    numbers drawn depend on `seed` alone, whatever else is in the batch. Before that, logits of tokens that the prompt
    or the answer has are divided by `repetition_penalty`, or multiplied where they are below 0 (Keskar 2019).
    """

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.repetition_penalty < inf:
            raise ValueError(f"repetition_penalty={self.repetition_penalty}: must be above 0")
        if self.temperature < 0:
            raise ValueError(f"temperature={self.temperature}: must be 0 or above")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p={self.top_p}: allowed are values above 0 up to 1")


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
