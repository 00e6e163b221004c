"""What one HTTP request asks of the engine: prompts, how often and how each is to be answered."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ktbench.engine.serving.requests import Sampling, ServeRequest
from ktbench.serve.answer import Answer
from ktbench.serve.errors import ApiError, invalid
from ktbench.serve.fields import Chat, Common, Completion, plain_messages
from ktbench.serve.tokens import TextTokens

_SEEDS = 1 << 63
_MAX_TOKENS = 16  # of a completion that names no number, as OpenAI's
_PART = 1 << 15  # characters that are encoded before others have their turn: about 10 ms
_SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "min_tokens",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompt:
    """Tokens to continue; `echo` is their text where that comes before the answer."""

    tokens: tuple[int, ...]
    echo: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What one request may ask for: answers at once, and tokens of prompt and answer together, of a vocabulary."""

    answers: int
    positions: int
    vocab: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """`n` answers to each prompt. `max_new` None leaves as much room as there is."""

    prompts: tuple[Prompt, ...]
    n: int
    max_new: int | None
    sampling: Sampling
    stops: tuple[str, ...]
    stop_ids: frozenset[int]
    logprobs: int | None
    stream: bool
    usage_last: bool
    usage_always: bool

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts, each counted once."""
        return sum(len(prompt.tokens) for prompt in self.prompts)

    def requests(self, key: str, limits: Limits) -> list[ServeRequest]:
        """What the engine is asked, answers to one prompt after the other. Raises ApiError for what has no room."""
        rooms = [_room(prompt.tokens, self.max_new, limits) for prompt in self.prompts]
        return [
            ServeRequest(
                key=f"{key}/{number * self.n + i}",
                prompt=prompt.tokens,
                max_new=room,
                sampling=replace(self.sampling, seed=(self.sampling.seed + i) % _SEEDS),
                stop_ids=self.stop_ids,
                logprobs=self.logprobs,
                prompt_logprobs=prompt.echo is not None and self.logprobs is not None,
            )
            for number, (prompt, room) in enumerate(zip(self.prompts, rooms, strict=True))
            for i in range(self.n)
        ]

    def answers(self, tokens: TextTokens) -> list[Answer]:
        """The texts of the answers to `requests`, empty so far."""
        return [
            Answer(
                tokens,
                prompt=prompt.tokens,
                stops=self.stops,
                echo=prompt.echo,
                max_new=1 if self.max_new is None else self.max_new,
            )
            for prompt in self.prompts
            for _ in range(self.n)
        ]


def _room(prompt: Sequence[int], max_new: int | None, limits: Limits) -> int:
    """Tokens that an answer may have, one at least. Raises ApiError where prompt and answer are too long together."""
    left = limits.positions - len(prompt)
    if left < max(1, max_new or 0):
        answer = "" if max_new is None else f" and up to {max_new} of the answer"
        why = f"the model has room for {limits.positions} tokens, the prompt has {len(prompt)}{answer}"
        raise ApiError(400, why, "max_tokens" if left > 0 else "prompt", "context_length_exceeded")
    if any(one >= limits.vocab for one in prompt):
        raise invalid("prompt", f"has a token that is none of the {limits.vocab} of the model")
    return left if max_new is None else max(1, max_new)


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """Texts of a request that are not encoded yet. `make` encodes them, which takes a while, and raises ApiError."""

    param: str
    texts: tuple[str, ...]
    make: Callable[[], Job]


def asked_completion(request: Completion, tokens: TextTokens, limits: Limits) -> Asked:
    """What `POST /v1/completions` asks. Raises ApiError."""
    if request.max_tokens == 0 and not request.echo:
        raise invalid("max_tokens", "must be 1 or more without echo")
    given = _given(request.prompt)
    _require_answers(len(given), request.n or 1, limits)
    texts = tuple(one for one in given if isinstance(one, str))
    return Asked(param="prompt", texts=texts, make=lambda: _completion_job(request, given, tokens, limits))


def _completion_job(request: Completion, given: Sequence[str | list[int]], tokens: TextTokens, limits: Limits) -> Job:
    return _job(
        request,
        tokens,
        limits,
        prompts=tuple(_prompt(one, tokens, echo=bool(request.echo)) for one in given),
        max_new=_MAX_TOKENS if request.max_tokens is None else request.max_tokens,
        logprobs=request.logprobs,
    )


def asked_chat(request: Chat, tokens: TextTokens, limits: Limits) -> Asked:
    """What `POST /v1/chat/completions` asks. Raises ApiError."""
    if request.top_logprobs is not None and not request.logprobs:
        raise invalid("top_logprobs", "needs logprobs=true")
    most = {one for one in (request.max_tokens, request.max_completion_tokens) if one is not None}
    if len(most) > 1:
        raise invalid("max_tokens", "differs from max_completion_tokens, set one of them")
    _require_answers(1, request.n or 1, limits)
    messages = plain_messages(request.messages)
    texts = tuple(message["content"] for message in messages)
    return Asked(
        param="messages", texts=texts, make=lambda: _chat_job(request, messages, next(iter(most), None), tokens, limits)
    )


def _chat_job(
    request: Chat, messages: Sequence[Mapping[str, str]], max_new: int | None, tokens: TextTokens, limits: Limits
) -> Job:
    try:
        found = tokens.chat(messages, _template_options(request, tokens))
    except ValueError as error:
        raise invalid("messages", str(error)) from None
    if not found:
        raise invalid("messages", "give a prompt without tokens")
    return _job(
        request,
        tokens,
        limits,
        prompts=(Prompt(tokens=found),),
        max_new=max_new,
        logprobs=(request.top_logprobs or 0) if request.logprobs else None,
    )


def _template_options(request: Chat, tokens: TextTokens) -> dict[str, Any]:
    """Variables of the chat template. A template that knows no effort may know whether to reason at all.

    For a model that does neither, the effort has no meaning, and no effect.
    """
    options, effort = dict(request.chat_template_kwargs or {}), request.reasoning_effort
    if effort is not None and tokens.chat_reads("reasoning_effort"):
        options.setdefault("reasoning_effort", effort)
    elif effort is not None and tokens.chat_reads("enable_thinking"):
        options.setdefault("enable_thinking", effort not in ("none", "minimal"))
    return options


def require_room(asked: Asked, tokens: TextTokens, limits: Limits) -> Iterator[Callable[[], None]]:
    """Raises ApiError for a text that the model has no room for, by its length alone.

    Where that does not tell, gives what is to be called, each in a moment, to count tokens in parts. These may be a few
    more than those of the whole, so that a text is refused for twice as many as there is room for.
    """
    for text in asked.texts:
        if tokens.least(text) > limits.positions:
            raise _too_long(asked.param, f"at least {tokens.least(text)} tokens", limits)
        counted = [0]
        for first in range(0, len(text) if len(text) > _PART else 0, _PART):
            yield partial(_count, asked.param, text[first : first + _PART], counted, tokens, limits)


def _count(param: str, part: str, counted: list[int], tokens: TextTokens, limits: Limits) -> None:
    counted[0] += tokens.count(part)
    if counted[0] > 2 * limits.positions:
        raise _too_long(param, f"more than {counted[0] // 2} tokens", limits)


def _too_long(param: str, what: str, limits: Limits) -> ApiError:
    why = f"the model has room for {limits.positions} tokens, {param} has {what}"
    return ApiError(400, why, param, "context_length_exceeded")


def _require_answers(prompts: int, n: int, limits: Limits) -> None:
    if (answers := prompts * n) > limits.answers:
        raise invalid("n" if n > 1 else "prompt", f"asks for {answers} answers, allowed are {limits.answers}")


def _given(prompt: str | list[str | int | list[int]]) -> list[str | list[int]]:
    """The prompts of the field: a text, texts, the tokens of one prompt, or those of several."""
    if isinstance(prompt, str):
        return [prompt]
    texts = [one for one in prompt if isinstance(one, str)]
    ids = [one for one in prompt if isinstance(one, int)]
    lists = [one for one in prompt if isinstance(one, list)]
    if not prompt or len(prompt) not in (len(texts), len(ids), len(lists)):
        raise invalid("prompt", "must be a text, a list of texts, a list of tokens, or a list of lists of tokens")
    return [ids] if ids else [*texts, *lists]


def _prompt(given: str | list[int], tokens: TextTokens, *, echo: bool) -> Prompt:
    found = tokens.encode(given) if isinstance(given, str) else tuple(given)
    if not found:
        raise invalid("prompt", "has no tokens, at least one is needed")
    text = given if isinstance(given, str) else tokens.text(found)
    return Prompt(tokens=found, echo=text if echo else None)


def _job(
    request: Common,
    tokens: TextTokens,
    limits: Limits,
    *,
    prompts: tuple[Prompt, ...],
    max_new: int | None,
    logprobs: int | None,
) -> Job:
    options = request.stream_options
    if options is not None and not request.stream:
        raise invalid("stream_options", "needs stream=true")
    if max_new is not None and (request.min_tokens or 0) > max_new:
        raise invalid("min_tokens", f"must be up to the {max_new} that the answer may have")
    stops = [request.stop] if isinstance(request.stop, str) else request.stop or []
    return Job(
        prompts=prompts,
        n=request.n or 1,
        max_new=max_new,
        sampling=_sampling(request, tokens, limits),
        stops=tuple(stops),
        stop_ids=(frozenset() if request.ignore_eos else tokens.stop_ids) | {*(request.stop_token_ids or ())},
        logprobs=logprobs,
        stream=bool(request.stream),
        usage_last=options is not None and bool(options.include_usage),
        usage_always=options is not None and bool(options.continuous_usage_stats),
    )


def _sampling(request: Common, tokens: TextTokens, limits: Limits) -> Sampling:
    """What a request does not name is that of the checkpoint, else OpenAI's: temperature 1, another seed every time."""
    named = {name: getattr(request, name) for name in _SAMPLING}
    chosen = (
        {"temperature": 1.0} | dict(tokens.defaults) | {k: value for k, value in named.items() if value is not None}
    )
    bias = request.logit_bias or {}
    if any(token >= limits.vocab for token in bias):
        raise invalid("logit_bias", f"has a token that is none of the {limits.vocab} of the model")
    return Sampling(
        **{**chosen, "top_k": max(0, int(chosen.get("top_k", 0)))},
        logit_bias=tuple(bias.items()),
        seed=secrets.randbelow(_SEEDS) if request.seed is None else request.seed % _SEEDS,
    )
