"""The text of one answer as its tokens come: whole characters, and nothing of the strings that end it."""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ktbench.engine.serving.requests import TokenEvent, Top
from ktbench.serve.tokens import TextTokens


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenText:
    """A token, whose text begins at character `offset` of the answer, with what was asked for of its probability."""

    token: int
    offset: int
    logprob: float | None = None
    top: Top = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Delta:
    """What an event adds to an answer: text, and tokens whose probabilities were asked for, each with its own event.

    Text is held back while it may be half a character or the beginning of a stop string; tokens never are. `finish` is
    `stop` or `length` on the last one.
    """

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
        return next((n for n in range(most, 0, -1) if any(stop.startswith(text[-n:]) for stop in self._stops)), 0)


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
        self._decoded = 0
        self._begun = False
        self.count = self.cached_tokens = 0

    def add(self, event: TokenEvent) -> Delta:
        """What the event adds. Raises EngineFailed for one that ends the answer by an error, or takes it back."""
        if event.finish in ("error", "cancelled"):
            raise EngineFailed(event.why or "the engine has taken the request back")
        before = Delta() if self._begun else self._begin(event)
        if self._max_new == 0:
            return replace(before, finish="length")
        self.count += event.token is not None
        tokens = (*before.tokens, *self._listed(event))
        text, finish = self._shown(event)
        return Delta(text=before.text + text, tokens=tokens, finish=finish)

    def _begin(self, event: TokenEvent) -> Delta:
        """The prompt where it comes first."""
        self._begun, self.cached_tokens = True, event.cached_tokens
        if self._echo is None:
            return Delta()
        self._decoded = len(self._echo)
        if event.logprob is None:
            return Delta(text=self._echo)
        offsets = self._tokens.offsets(self._echo, self._prompt)
        probabilities: list[tuple[float | None, Top]] = [(None, ()), *event.prompt_logprobs]
        tokens = (
            TokenText(token=token, offset=offset, logprob=logprob, top=top)
            for token, offset, (logprob, top) in zip(self._prompt, offsets, probabilities, strict=True)
        )
        return Delta(text=self._echo, tokens=tuple(tokens))

    def _listed(self, event: TokenEvent) -> Iterator[TokenText]:
        """The token of an event, which may have no text, such as the one that ends an answer."""
        if event.token is not None and event.logprob is not None:
            yield TokenText(token=event.token, offset=self._decoded, logprob=event.logprob, top=event.top)

    def _shown(self, event: TokenEvent) -> tuple[str, str | None]:
        """The text that can be shown after an event, and why the answer ends, if it does."""
        text = ""
        if event.token is not None and event.finish != "stop":  # the token that ends an answer is not part of its text
            text = self._stops.add(self._decode(self._tokens.shown(event.token)))
        if event.finish is not None and not self._stops.found:
            text += self._stops.add(self._decode(b"", final=True))
        if self._stops.found:
            return text, "stop"
        return text + (self._stops.flush() if event.finish else ""), event.finish

    def _decode(self, piece: bytes, *, final: bool = False) -> str:
        text = self._utf8.decode(piece, final=final)
        self._decoded += len(text)
        return text
