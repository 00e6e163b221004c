"""Replays a stream of requests: sends those that are due, steps the engine, and notes the results of each step."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, takewhile
from time import perf_counter, sleep

from ktbench.engine.serving.requests import QueueFull, Sampling, ServeRequest, ServingEngine, TokenEvent
from ktbench.engine.workload.stream import StreamRequest
from ktbench.run.serving.answers import Logits, ReplayedRequest, stack_logits
from ktbench.spec.serving.replay import Replay, ServedRequest, runs_of, spans_of

# Times are kept in microseconds: steps take at least a hundred times as long.
_DIGITS = 6


class RequestFailed(Exception):
    """A request ended unexpectedly; the text says which, and how."""


@dataclass(kw_only=True)
class _Request:
    """A request that was sent, or waits to be accepted."""

    prompt: tuple[int, ...]
    arrived_s: float
    tokens: list[int] = field(default_factory=list)
    logits: list[Logits | None] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    cached: int = 0
    taken: bool = False


@dataclass(kw_only=True)
class Driver:
    """One replay of a stream on an idle engine, for `concurrency` users if the loop is closed.

    Single-threaded: arrivals are noticed between steps, and every token of a step arrives when the step ends. Requests
    with numbers in `watched` return their logits. Tokens are chosen by `sampling`, with a seed for each request.
    """

    engine: ServingEngine
    stream: Sequence[StreamRequest]
    concurrency: int
    watched: Collection[int] = ()
    sampling: Sampling = field(default_factory=Sampling)
    clock: Callable[[], float] = perf_counter
    sleep: Callable[[float], None] = sleep
    answered: int = 0
    _begin_s: float | None = None
    _unsent: list[int] = field(init=False)
    _sent: dict[int, _Request] = field(default_factory=dict)
    _unanswered: set[int] = field(default_factory=set)
    _ended_s: dict[int, float] = field(default_factory=dict)
    _ends_s: list[float] = field(default_factory=list)
    _waiting: list[int] = field(default_factory=list)
    _running: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._unsent = list(range(len(self.stream)))

    def run_until(self, answered: int) -> None:
        """Continue until this many requests are answered. Raises RequestFailed, and whatever the engine raises."""
        if self._begin_s is None:
            self._begin_s = self.clock()
        while self.answered < answered:
            self._send_due()
            if not self._unanswered:
                self._wait()
                continue
            events = self.engine.step()
            self._note(events, self._now_s())

    @property
    def answers(self) -> tuple[ReplayedRequest, ...]:
        """The answers to all sent requests, in the order of the stream; watched ones with logits."""
        return tuple(self._replayed_request(number) for number in sorted(self._sent))

    def _replayed_request(self, number: int) -> ReplayedRequest:
        request = self._sent[number]
        logits = stack_logits(request.logits)
        return ReplayedRequest(
            number=number,
            prompt=request.prompt,
            answer=tuple(request.tokens),
            logits=logits,
            sampling=self._sampling(number),
        )

    def _sampling(self, number: int) -> Sampling:
        return replace(self.sampling, seed=self.sampling.seed + number)

    def replay(self) -> Replay:
        """The recorded times. Raises ValueError unless every request is answered."""
        if self.answered < len(self.stream):
            raise ValueError(f"{self.answered} of {len(self.stream)} requests are answered")
        return Replay(
            ends_s=tuple(self._ends_s),
            waiting=runs_of(self._waiting),
            running=runs_of(self._running),
            requests=tuple(
                ServedRequest(
                    arrived_s=request.arrived_s,
                    prompt=len(request.prompt),
                    token_steps=spans_of(request.steps),
                    cached=request.cached,
                )
                for _, request in sorted(self._sent.items())
            ),
        )

    def _now_s(self) -> float:
        assert self._begin_s is not None
        return round(self.clock() - self._begin_s, _DIGITS)

    def _send_due(self) -> None:
        """Send every request that has arrived, in order; retry those that the engine did not accept before."""
        for number in self._due():
            self._unsent.remove(number)
            self._sent[number] = _Request(prompt=self._prompt(number), arrived_s=self._arrival_s(number))
            self._unanswered.add(number)
        for number in sorted(self._unanswered):
            request = self._sent[number]
            if not request.taken and not self._take(number, request):
                return

    def _due(self) -> list[int]:
        free, ready = self.concurrency - len(self._unanswered), filter(self._may_go, self._unsent)
        if self.stream[0].arrival_s is None:
            return [*islice(ready, free)]
        now_s = self._now_s()
        arrived = takewhile(lambda number: (self.stream[number].arrival_s or 0.0) <= now_s, self._unsent)
        return [*filter(self._may_go, arrived)]

    def _may_go(self, number: int) -> bool:
        after = self.stream[number].after
        return after is None or after in self._ended_s

    def _arrival_s(self, number: int) -> float:
        """The arrival time; for a turn due before its predecessor was answered, that moment; in a closed loop, now."""
        due_s, after = self.stream[number].arrival_s, self.stream[number].after
        if due_s is None:
            return self._ends_s[-1] if self._ends_s else 0.0
        return round(due_s if after is None else max(due_s, self._ended_s[after]), _DIGITS)

    def _prompt(self, number: int) -> tuple[int, ...]:
        request = self.stream[number]
        if request.after is None:
            return request.tokens
        before = self._sent[request.after]
        return (*before.prompt, *before.tokens, *request.tokens)

    def _take(self, number: int, request: _Request) -> bool:
        longest, asks = self.stream[number].answer, number in self.watched
        new = ServeRequest(
            key=str(number), prompt=request.prompt, max_new=longest, logits=asks, sampling=self._sampling(number)
        )
        try:
            self.engine.submit(new)
        except QueueFull:
            return False
        request.taken = True
        return True

    def _wait(self) -> None:
        """Sleep until the next arrival, while nothing is running."""
        due_s = min(map(self._arrival_s, filter(self._may_go, self._unsent)))
        self.sleep(max(0.0, due_s - self._now_s()))

    def _note(self, events: Sequence[TokenEvent], now_s: float) -> None:
        state = self.engine.state
        untaken = sum(not self._sent[number].taken for number in self._unanswered)
        waiting, running = state.waiting + untaken, state.running
        if not events and self._ends_s and (waiting, running) == (self._waiting[-1], self._running[-1]):
            return
        step = len(self._ends_s)
        self._ends_s.append(now_s)
        self._waiting.append(waiting)
        self._running.append(running)
        for event in events:
            self._note_event(event, step)

    def _note_event(self, event: TokenEvent, step: int) -> None:
        number = int(event.key)
        request = self._sent[number]
        request.cached = max(request.cached, event.cached_tokens)
        if event.token is not None:
            request.tokens.append(event.token)
            request.logits.append(event.logits)
            request.steps.append(step)
        if event.finish is not None:
            self._require_whole(number, event)
            self._unanswered.discard(number)
            self._ended_s[number] = self._ends_s[step]
            self.answered += 1

    def _require_whole(self, number: int, event: TokenEvent) -> None:
        wanted, got = self.stream[number].answer, len(self._sent[number].tokens)
        if event.finish != "length" or got != wanted:
            why = f": {event.why}" if event.why else ""
            raise RequestFailed(f"request {number} ended by {event.finish} after {got} of {wanted} tokens{why}")
