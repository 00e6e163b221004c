"""What one HTTP request asks of the engine: prompts, how often and how each is to be answered."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ktbench.engine.serving.requests import Sampling, ServeRequest
from ktbench.serve.answer import Answer
from ktbench.serve.errors import ApiError, invalid
from ktbench.serve.fields import Chat, Common, Completion, plain_messages
from ktbench.serve.tokens import TextTokens

_SEEDS = 1 << 63
_MAX_TOKENS = 16  # of a completion that names no number, as OpenAI's


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
        return sum(len(one.tokens) for one in self.prompts)

    def requests(self, key: str, limits: Limits) -> list[ServeRequest]:
        """What the engine is asked, answers to one prompt after the other. Raises ApiError for what has no room."""
        if (answers := len(self.prompts) * self.n) > limits.answers:
            raise invalid("n" if self.n > 1 else "prompt", f"asks for {answers} answers, allowed are {limits.answers}")
        rooms = [_room(one.tokens, self.max_new, limits) for one in self.prompts]
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
                prompt=one.tokens,
                stops=self.stops,
                echo=one.echo,
                max_new=1 if self.max_new is None else self.max_new,
            )
            for one in self.prompts
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


def completion_job(request: Completion, tokens: TextTokens) -> Job:
    """The job of `POST /v1/completions`; it encodes texts, which takes a while for long ones. Raises ApiError."""
    if request.max_tokens == 0 and not request.echo:
        raise invalid("max_tokens", "must be 1 or more without echo")
    return _job(
        request,
        tokens,
        prompts=tuple(_prompts(request, tokens)),
        max_new=_MAX_TOKENS if request.max_tokens is None else request.max_tokens,
        logprobs=request.logprobs,
    )


def _prompts(request: Completion, tokens: TextTokens) -> list[Prompt]:
    return [_prompt(one, tokens, echo=bool(request.echo)) for one in _given(request.prompt)]


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


def chat_job(request: Chat, tokens: TextTokens) -> Job:
    """The job of `POST /v1/chat/completions`. Raises ApiError."""
    if request.top_logprobs is not None and not request.logprobs:
        raise invalid("top_logprobs", "needs logprobs=true")
    limits = {one for one in (request.max_tokens, request.max_completion_tokens) if one is not None}
    if len(limits) > 1:
        raise invalid("max_tokens", "differs from max_completion_tokens, set one of them")
    try:
        found = tokens.chat(plain_messages(request.messages))
    except ValueError as error:
        raise invalid("messages", str(error)) from None
    if not found:
        raise invalid("messages", "give a prompt without tokens")
    return _job(
        request,
        tokens,
        prompts=(Prompt(tokens=found),),
        max_new=next(iter(limits), None),
        logprobs=(request.top_logprobs or 0) if request.logprobs else None,
    )


def _job(
    request: Common, tokens: TextTokens, *, prompts: tuple[Prompt, ...], max_new: int | None, logprobs: int | None
) -> Job:
    options = request.stream_options
    if options is not None and not request.stream:
        raise invalid("stream_options", "needs stream=true")
    stops = [request.stop] if isinstance(request.stop, str) else request.stop or []
    return Job(
        prompts=prompts,
        n=request.n or 1,
        max_new=max_new,
        sampling=_sampling(request),
        stops=tuple(stops),
        stop_ids=frozenset() if request.ignore_eos else tokens.stop_ids,
        logprobs=logprobs,
        stream=bool(request.stream),
        usage_last=options is not None and bool(options.include_usage),
        usage_always=options is not None and bool(options.continuous_usage_stats),
    )


def _sampling(request: Common) -> Sampling:
    """OpenAI's defaults: temperature 1, of all tokens, another seed every time."""
    return Sampling(
        temperature=1.0 if request.temperature is None else request.temperature,
        top_p=1.0 if request.top_p is None else request.top_p,
        repetition_penalty=1.0 if request.repetition_penalty is None else request.repetition_penalty,
        seed=secrets.randbelow(_SEEDS) if request.seed is None else request.seed % _SEEDS,
    )
