"""Answers as the two endpoints write them, as a whole and in chunks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ktbench.serve.answer import Delta, TokenText
from ktbench.serve.tokens import TextTokens

_LEAST_LOGPROB = -9999.0  # for a token that cannot come: JSON has no infinity


class Format(Protocol):
    """How an endpoint writes choices."""

    @property
    def prefix(self) -> str:
        """What ids of answers begin with."""

    @property
    def whole(self) -> str:
        """The kind of object that a whole answer is."""

    @property
    def chunk(self) -> str:
        """The kind of object that a chunk is."""

    def choice(self, index: int, deltas: Sequence[Delta], likeliest: int | None) -> dict[str, Any]:
        """A whole answer, with the probabilities of its tokens where some of the likeliest are asked for."""

    def part(self, index: int, delta: Delta, likeliest: int | None) -> dict[str, Any]:
        """What a delta adds to an answer."""

    def first(self, index: int) -> dict[str, Any] | None:
        """What comes before all deltas of an answer."""


@dataclass(frozen=True, slots=True)
class TextFormat:
    """Choices of `/v1/completions`."""

    tokens: TextTokens
    prefix: str = "cmpl"
    whole: str = "text_completion"
    chunk: str = "text_completion"

    def choice(self, index: int, deltas: Sequence[Delta], likeliest: int | None) -> dict[str, Any]:
        return self.part(index, _joined(deltas), likeliest)

    def part(self, index: int, delta: Delta, likeliest: int | None) -> dict[str, Any]:
        logprobs = None if likeliest is None else self._logprobs(delta.tokens)
        return {"index": index, "text": delta.text, "logprobs": logprobs, "finish_reason": delta.finish}

    def first(self, index: int) -> None:
        """See `Format`."""

    def _logprobs(self, found: Sequence[TokenText]) -> dict[str, Any]:
        return {
            "tokens": [self._word(one.token) for one in found],
            "token_logprobs": [None if one.logprob is None else _finite(one.logprob) for one in found],
            "top_logprobs": [None if one.logprob is None else self._likeliest(one) for one in found],
            "text_offset": [one.offset for one in found],
        }

    def _likeliest(self, one: TokenText) -> dict[str, float]:
        """By text; of tokens with the same text the likeliest. The token itself is there in any case."""
        assert one.logprob is not None
        found: dict[str, float] = {}
        for token, logprob in (*one.top, (one.token, one.logprob)):
            found.setdefault(self._word(token), _finite(logprob))
        return found

    def _word(self, token: int) -> str:
        """The text of a token; of one that is no whole characters its bytes, as OpenAI writes them."""
        piece = self.tokens.piece(token)
        try:
            return piece.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """Choices of `/v1/chat/completions`."""

    tokens: TextTokens
    prefix: str = "chatcmpl"
    whole: str = "chat.completion"
    chunk: str = "chat.completion.chunk"

    def choice(self, index: int, deltas: Sequence[Delta], likeliest: int | None) -> dict[str, Any]:
        delta = _joined(deltas)
        message = {"role": "assistant", "content": delta.text, "refusal": None}
        return {"index": index, "message": message, **self._ending(delta, likeliest)}

    def part(self, index: int, delta: Delta, likeliest: int | None) -> dict[str, Any]:
        return {"index": index, "delta": {"content": delta.text}, **self._ending(delta, likeliest)}

    def first(self, index: int) -> dict[str, Any]:
        delta = {"role": "assistant", "content": ""}
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}

    def _ending(self, delta: Delta, likeliest: int | None) -> dict[str, Any]:
        logprobs = None if likeliest is None else {"content": [self._logprobs(token) for token in delta.tokens]}
        return {"logprobs": logprobs, "finish_reason": delta.finish}

    def _logprobs(self, one: TokenText) -> dict[str, Any]:
        assert one.logprob is not None
        return {**self._named(one.token, one.logprob), "top_logprobs": [self._named(*pair) for pair in one.top]}

    def _named(self, token: int, logprob: float) -> dict[str, Any]:
        piece = self.tokens.piece(token)
        return {"token": piece.decode(errors="replace"), "logprob": _finite(logprob), "bytes": list(piece)}


def _joined(deltas: Sequence[Delta]) -> Delta:
    return Delta(
        text="".join(delta.text for delta in deltas),
        tokens=tuple(token for delta in deltas for token in delta.tokens),
        finish=deltas[-1].finish if deltas else None,
    )


def _finite(logprob: float) -> float:
    return max(logprob, _LEAST_LOGPROB)
