"""A scripted engine that serves: its clock is its own, steps take what the script says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from ktbench.engine.serving.requests import QueueFull, ServeRequest, ServingState, TokenEvent
from ktbench.engine.serving.sampling import SampledAnswer, TokenChooser
from ktbench.spec.features import FEATURES

VOCAB = 64


@dataclass
class FakeClock:
    """Time passes where someone sleeps."""

    now_s: float = 100.0
    slept_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self.slept_s += seconds


@dataclass
class _Sequence:
    request: ServeRequest
    prompt_left: int
    answer: list[int] = field(default_factory=list)
    sampled: SampledAnswer = field(init=False)

    def __post_init__(self) -> None:
        self.sampled = SampledAnswer(self.request.sampling, self.request.prompt)


class FakeServing:
    """A step takes `prompt_s` for each prompt token and `token_s` once for all answers that get a token in it.

    Up to `most` requests run; prompts go through whole, in the step that admits their request, or `chunk` tokens of all
    of them a step, and the first token comes with the last of a prompt. Up to `most_waiting` wait. `wrong` makes
    another token of one that is given to one of several, `blurred` other logits. With `is_greedy` it draws no tokens,
    whatever it is asked.
    """

    def __init__(
        self,
        clock: FakeClock,
        *,
        most: int = 4,
        most_waiting: int = 100,
        prompt_s: float = 0.001,
        token_s: float = 0.1,
        features: Mapping[str, object] | None = None,
        wrong: Callable[[int], int] = lambda token: token,
        blurred: Callable[[NDArray[np.float32], bool], NDArray[np.float32]] = lambda logits, several: logits,
        ends: str = "length",
        chunk: int | None = None,
        is_greedy: bool = False,
    ) -> None:
        self.clock, self.most, self.most_waiting = clock, most, most_waiting
        self.prompt_s, self.token_s, self.wrong, self.ends = prompt_s, token_s, wrong, ends
        self.chunk, self.blurred, self.is_greedy = chunk, blurred, is_greedy
        self.features = features or {}
        self.waiting: list[_Sequence] = []
        self.running: list[_Sequence] = []
        self.counts = {feature.counter: 0 for feature in FEATURES}
        self.prompts: list[tuple[int, ...]] = []
        self.moved: list[bool] = []
        self.forgot = 0
        self.closed = False

    def submit(self, request: ServeRequest) -> None:
        if len(self.waiting) >= self.most_waiting:
            raise QueueFull("enough wait")
        self.prompts.append(request.prompt)
        self.waiting.append(_Sequence(request, len(request.prompt)))

    def cancel(self, key: str) -> None:
        raise NotImplementedError

    def step(self) -> list[TokenEvent]:
        while self.waiting and len(self.running) < self.most:
            self.running.append(self.waiting.pop(0))
        several = len(self.running) > 1
        done = self._prompts()
        self.clock.now_s += self.prompt_s * done
        self.clock.now_s += self.token_s if self.running else 0.0
        self._count()
        events = [self._next(one, several) for one in self.running if not one.prompt_left]
        self.running = [one for one in self.running if len(one.answer) < one.request.max_new]
        return events

    def _prompts(self) -> int:
        """Take up to `chunk` tokens of prompts; how many."""
        room = self.chunk or sum(one.prompt_left for one in self.running)
        begun = room
        for one in self.running:
            taken = min(room, one.prompt_left)
            one.prompt_left -= taken
            room -= taken
        return begun - room

    def _count(self) -> None:
        idle = {"batching", "static_batch"} if len(self.running) < 2 else set()
        if not any(one.prompt_left for one in self.running):
            idle.add("chunked_prefill")
        for feature in FEATURES:
            if self.features.get(feature.name, feature.off) != feature.off and feature.name not in idle:
                self.counts[feature.counter] += 1

    def _next(self, one: _Sequence, several: bool) -> TokenEvent:
        scores = self.scores((*one.request.prompt, *one.answer))
        token = max(scores, key=lambda token: scores[token])
        logits = self.blurred(np.array([*scores.values()], np.float32), several)
        if one.request.sampling.temperature and not self.is_greedy:
            (drawn,) = TokenChooser().choose(torch.from_numpy(logits)[None], [one.sampled])
            assert drawn is not None
            token = drawn
        token = self.wrong(token) if several else token
        if one.request.forced:
            token = one.request.forced[len(one.answer)]
        one.answer.append(token)
        last = len(one.answer) == one.request.max_new
        return TokenEvent(
            key=one.request.key,
            token=token,
            finish=self.ends if last else None,  # type: ignore[arg-type]
            logits=logits if one.request.logits else None,
        )

    @staticmethod
    def scores(tokens: tuple[int, ...]) -> dict[int, float]:
        """A score in nats of every token after these: another order for other tokens."""
        state = 1
        for token in tokens:
            state = (state * 48271 + token + 1) % 2147483647
        return {token: -((state // 7 + 31 * token) % VOCAB) / 8 for token in range(VOCAB)}

    @property
    def state(self) -> ServingState:
        return ServingState(
            waiting=len(self.waiting),
            running=len(self.running),
            pages=10,
            free_pages=10,
            cached_pages=0,
            page_tokens=16,
        )

    @property
    def max_positions(self) -> int:
        return 4096

    def counters(self) -> Mapping[str, int]:
        return dict(self.counts)

    def notes(self) -> tuple[str, ...]:
        return ()

    def move_cached(self, *, to_disk: bool) -> None:
        self.moved.append(to_disk)

    def forget_cached(self) -> None:
        self.forgot += 1

    def close(self) -> None:
        self.closed = True
