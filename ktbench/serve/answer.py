"""The text of one answer as its tokens come: whole characters, and nothing of the strings that end it."""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ktbench.engine.serving.requests import TokenEvent, Top
from ktbench.serve.tokens import TextTokens


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenText:
    """A token of a text, which begins at `offset` of it in characters, with what was asked for of its probability."""

    token: int
    offset: int
    logprob: float | None = None
    top: Top = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Delta:
    """What an event adds to an answer. `finish` is `stop` or `length` on the last one."""

    text: str = ""
    tokens: tuple[TokenText, ...] = ()
    finish: str | None = None

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to show."""
        return not self.text and not self.tokens and self.finish is None


class EngineFailed(Exception):
    """The engine ended an answer; the text is the reason."""


class StopSearch:
    """Holds back what may be the beginning of a stop string, and ends a text before the one that is complete first."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops, self._held = tuple(stops), ""
        self._longest = max(map(len, stops), default=0)
        self.found = False

    def add(self, text: str) -> str:
        """What can be shown now. Of strings that are complete at once the one that begins first counts."""
        text = self._held + text
        ends = [(at + len(stop), at) for stop in self._stops if (at := text.find(stop)) >= 0]
        if ends:
            self.found, self._held = True, ""
            return text[: min(ends)[1]]
        kept = len(text) - self._begun(text)
        self._held = text[kept:]
        return text[:kept]

    def flush(self) -> str:
        """What was held back: no more text comes."""
        held, self._held = self._held, ""
        return held

    def _begun(self, text: str) -> int:
        """Characters at the end of a text that a stop string begins with."""
        most = min(len(text), self._longest - 1)
        return next((n for n in range(most, 0, -1) if any(one.startswith(text[-n:]) for one in self._stops)), 0)


class Answer:
    """One answer to `prompt`. With `echo`, the text of the prompt, that comes before it, tokens of the prompt included.

    An answer of `max_new` 0 has no tokens of its own: what the engine adds to the prompt is left out.
    """

    def __init__(
        self,
        tokens: TextTokens,
        *,
        prompt: Sequence[int],
        stops: Sequence[str] = (),
        echo: str | None = None,
        max_new: int = 1,
    ) -> None:
        self._tokens, self._prompt, self._echo, self._max_new = tokens, prompt, echo, max_new
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._stops = StopSearch(stops)
        self._waiting: deque[tuple[TokenText, int]] = deque()  # with where they end
        self._decoded = self._shown = 0
        self._begun = False
        self.count = self.cached_tokens = 0

    def add(self, event: TokenEvent) -> Delta:
        """What the event adds. Raises EngineFailed for one that ends the answer by an error, or takes it back."""
        if event.finish in ("error", "cancelled"):
            raise EngineFailed(event.why or "the engine has taken the request back")
        text = "" if self._begun else self._begin(event)
        if self._max_new == 0:
            return self._delta(text, "length")
        self.count += event.token is not None
        if event.token is not None and event.finish != "stop":  # the token that ends an answer is not part of its text
            text += self._stops.add(self._decode(event.token, event))
        if not self._stops.found and event.finish is not None:
            return self._end(text, event.finish)
        return self._delta(text, "stop" if self._stops.found else None)

    def _begin(self, event: TokenEvent) -> str:
        """The text of the prompt where it comes first; its tokens wait with those of the answer."""
        self._begun, self.cached_tokens = True, event.cached_tokens
        if self._echo is None:
            return ""
        utf8, at = codecs.getincrementaldecoder("utf-8")(errors="replace"), 0
        probabilities: list[tuple[float | None, Top]] = [(None, ()), *event.prompt_logprobs]
        for token, (logprob, top) in zip(self._prompt, probabilities, strict=False):
            one = TokenText(token=token, offset=at, logprob=logprob, top=top)
            at = min(at + len(utf8.decode(self._tokens.shown(token))), len(self._echo))
            self._waiting.append((one, at))
        self._decoded = len(self._echo)
        return self._echo

    def _decode(self, token: int, event: TokenEvent) -> str:
        text, offset = self._utf8.decode(self._tokens.shown(token)), self._decoded
        self._decoded += len(text)
        one = TokenText(token=token, offset=offset, logprob=event.logprob, top=event.top)
        self._waiting.append((one, self._decoded))
        return text

    def _end(self, text: str, finish: str) -> Delta:
        """No more tokens come: what is left of a character and of a stop string is text."""
        text += self._stops.add(self._utf8.decode(b"", final=True))
        if self._stops.found:
            return self._delta(text, "stop")
        return self._delta(text + self._stops.flush(), finish)

    def _delta(self, text: str, finish: str | None) -> Delta:
        return Delta(text=text, tokens=tuple(self._released(text)), finish=finish)

    def _released(self, text: str) -> Iterator[TokenText]:
        """Tokens whose text is shown, if only in part."""
        self._shown += len(text)
        while self._waiting and (self._waiting[0][0].offset < self._shown or self._waiting[0][1] <= self._shown):
            yield self._waiting.popleft()[0]
