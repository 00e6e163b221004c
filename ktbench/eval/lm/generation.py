"""Prompts and generation settings of lm-eval's requests: encoded texts, lengths, stop strings, seeds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from operator import attrgetter
from types import MappingProxyType, SimpleNamespace
from typing import Any

import jinja2
from lm_eval.models.utils import handle_stop_sequences, has_bos_prefix, normalize_gen_kwargs, postprocess_generated_text
from transformers import PreTrainedTokenizerBase
from transformers.utils import chat_template_utils

from ktbench.engine.serving.requests import Sampling
from ktbench.eval.lm.cache import request_key
from ktbench.spec.wire import to_plain


class Encoder:
    """A tokenizer, and whether texts begin with its first token: None leaves that to the tokenizer.

    Raises ValueError for a tokenizer without a token that ends a text.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, add_bos_token: bool | None = None) -> None:
        if tokenizer.eos_token_id is None:
            raise ValueError("tokenizer: has no token that ends a text (eos_token)")
        self.tokenizer, self._adds_bos = tokenizer, add_bos_token

    @property
    def eos_id(self) -> int:
        """The token that ends a text."""
        eos_id: int = self.tokenizer.eos_token_id
        return eos_id

    @property
    def prefix_id(self) -> int:
        """The token that stands for an empty context."""
        bos_id: int | None = self.tokenizer.bos_token_id
        return self.eos_id if bos_id is None else bos_id

    def string(self, tokens: Sequence[int], *, special: bool) -> str:
        """The text of tokens, with or without special tokens."""
        return str(self.tokenizer.decode(list(tokens), skip_special_tokens=not special))

    def text(self, text: str, add_special_tokens: bool | None = None) -> list[int]:
        """Tokens of a text to be scored, without a second begin-of-text token."""
        begins = has_bos_prefix(text, self.string([self.prefix_id], special=True))
        return self._encode(text, self._special(begins) if add_special_tokens is None else add_special_tokens)

    def prompt(self, text: str) -> list[int]:
        """Tokens of a text to be continued, at least one."""
        begins = has_bos_prefix(text, self.tokenizer.bos_token)
        return self._encode(text, self._special(begins)) or [self.prefix_id]

    def _special(self, begins: bool) -> bool | None:
        return False if begins else self._adds_bos

    def _encode(self, text: str, special: bool | None) -> list[int]:
        options = {} if special is None else {"add_special_tokens": special}
        return list(self.tokenizer.encode(text, **options))

    def chat(self, messages: list[dict[str, str]], *, answers: bool) -> str:
        """The prompt for a conversation that the model is to answer, or whose last message it is to continue.

        System messages are left out if the template rejects them.
        """
        try:
            return self._apply_template(messages, answers)
        except jinja2.exceptions.TemplateError:
            return self._apply_template([message for message in messages if message["role"] != "system"], answers)

    def _apply_template(self, messages: list[dict[str, str]], answers: bool) -> str:
        made: Any = self.tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=answers, continue_final_message=not answers
        )
        return str(made)


@contextmanager
def date_templates(day: datetime) -> Iterator[None]:
    """Chat templates that use the date get this one: Transformers passes today's and accepts no other."""
    module: Any = chat_template_utils
    before, module.datetime = module.datetime, SimpleNamespace(now=lambda: day)
    try:
        yield
    finally:
        module.datetime = before


_KNOWN = ("until", "max_gen_toks", "do_sample", "temperature", "top_p", "seed", "repetition_penalty")
# Settings of other generation methods, with the values that disable them.
_NEUTRAL = {
    **{"num_beams": 1, "top_k": 0, "encoder_repetition_penalty": 1.0, "guidance_scale": 1.0},
    **{"no_repeat_ngram_size": 0, "encoder_no_repeat_ngram_size": 0, "min_length": 0, "min_new_tokens": 0},
}
# Settings of a checkpoint's generation_config.json that change which token is most likely.
_OF_CHECKPOINTS = (
    *("repetition_penalty", "encoder_repetition_penalty", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size"),
    *("min_length", "min_new_tokens", "num_beams", "guidance_scale", "bad_words_ids", "sequence_bias"),
    *("suppress_tokens", "begin_suppress_tokens", "forced_bos_token_id", "forced_eos_token_id"),
    "exponential_decay_length_penalty",
)
# Extra tokens that are checked for a stop string, which may begin and end inside a token.
_AROUND = 2
_SEED_BITS = 63


def settings_of(config: Any) -> dict[str, Any]:
    """A checkpoint's settings for every answer, from its `config`, a GenerationConfig, by name.

    Raises ValueError for an unsupported generation method.
    """
    given = {name: value for name in _OF_CHECKPOINTS if (value := getattr(config, name, None)) is not None}
    return _known_settings(given, "generation_config.json: ")


def _known_settings(given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The settings that are not neutral. Raises ValueError, beginning with `where`, for unknown ones."""
    for name, value in given.items():
        if name not in _KNOWN and value != _NEUTRAL.get(name):
            raise ValueError(f"{where}{name}={value}: allowed are {', '.join(_KNOWN)}")
    return {name: value for name, value in given.items() if name in _KNOWN}


class GeneratedText(str):
    """A generated answer, with the number of its new tokens."""

    __slots__ = ("tokens",)
    tokens: int

    def __new__(cls, text: str, tokens: int = 0) -> GeneratedText:
        """`text` with its number of new tokens, including stop strings and the token that ended it.

        lm-eval calls the type of an answer with only the text.
        """
        answer = super().__new__(cls, text)
        answer.tokens = tokens
        return answer


@dataclass(frozen=True, kw_only=True, slots=True)
class Generation:
    """Settings of one request. `until` are strings that end an answer and are not part of it.

    `room` is the maximum number of new tokens. `temperature` 0 takes the most likely token. `seed` is None if the
    request has none.
    """

    until: tuple[str, ...]
    room: int
    temperature: float
    top_p: float
    seed: int | None
    repetition_penalty: float = 1.0

    @classmethod
    def from_arguments(
        cls, arguments: Mapping[str, Any], *, eos: str, room: int, usual: Mapping[str, Any] = MappingProxyType({})
    ) -> Generation:
        """The settings of a request's generation arguments, with `room` for new tokens by default.

        `usual` are the `settings_of` the checkpoint, which apply unless the request has others. Raises ValueError for
        arguments of other generation methods.
        """
        known = {**usual, **_known_settings(normalize_gen_kwargs(dict(arguments), room), "generation_kwargs.")}
        if known["max_gen_toks"] < 1:
            raise ValueError(f"generation_kwargs.max_gen_toks={known['max_gen_toks']}: must be at least 1")
        return cls(
            until=tuple(handle_stop_sequences(known["until"], eos=eos)),
            room=known["max_gen_toks"],
            temperature=float(known.get("temperature", 0.0)) if known["do_sample"] else 0.0,
            top_p=float(known.get("top_p", 1.0)),
            seed=known.get("seed"),
            repetition_penalty=float(known.get("repetition_penalty", 1.0)),
        )

    def longest_prompt(self, positions: int) -> int:
        """Most tokens of a prompt that a model with this many positions can answer. Raises ValueError if that is
        none."""
        if self.room >= positions:
            raise ValueError(
                f"generation_kwargs.max_gen_toks={self.room}: the model has {positions} positions, "
                "at least one of them has to be for the prompt"
            )
        return positions - self.room

    def cut(self, text: str) -> str:
        """The text before the first string that ends an answer."""
        return str(postprocess_generated_text(text, list(self.until), None))


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerationRequest:
    """A prompt, how it is to be answered, the cache key of its answer, and its place among others."""

    prompt: list[int]
    generation: Generation
    sampling: Sampling
    key: str
    place: tuple[int, str]

    @classmethod
    def for_prompt(
        cls, text: str, tokens: list[int], positions: int, generation: Generation, number: int
    ) -> GenerationRequest:
        """The `number`th repetition of this request for a model with this many positions; its seed is equal in all
        cells."""
        prompt = tokens[-generation.longest_prompt(positions) :]
        seed = generation.seed
        if seed is None:
            seed = int(request_key(prompt, number), 16) % (1 << _SEED_BITS)
        is_drawn = generation.temperature > 0  # the sampling method affects no answer without it
        sampling = Sampling(
            temperature=generation.temperature,
            top_p=generation.top_p if is_drawn else 1.0,
            seed=seed if is_drawn else 0,
            repetition_penalty=generation.repetition_penalty,
        )
        key = request_key("generate_until", prompt, generation.until, generation.room, to_plain(sampling))
        return cls(prompt=prompt, generation=generation, sampling=sampling, key=key, place=(-len(tokens), text))


def group_requests(requests: Iterable[GenerationRequest]) -> list[list[GenerationRequest]]:
    """Requests in the groups and the order of lm-eval's `hf` model: equal settings, the longest texts first.

    Requests in one batch affect each other's rounding, so equal batches are needed for equal answers.
    """
    groups: dict[Generation, list[GenerationRequest]] = defaultdict(list)
    for request in requests:
        groups[replace(request.generation, seed=None)].append(request)
    return [sorted(group, key=attrgetter("place")) for group in groups.values()]


class Stops:
    """Decides when answers are complete: at a token that ends them, at a stop string, or without room left."""

    def __init__(self, encoder: Encoder, eos_ids: frozenset[int]) -> None:
        self._encoder, self._eos_ids = encoder, eos_ids

    def complete(self, generation: Generation, tokens: Sequence[int]) -> bool:
        """Whether an answer ends with the last of these tokens."""
        if len(tokens) >= generation.room or tokens[-1] in self._eos_ids:
            return True
        # Every token has at least a byte, so a stop string has no more tokens than bytes.
        tail = tokens[-max(len(stop.encode()) for stop in generation.until) - _AROUND :]
        text = self._encoder.string(tail, special=True)
        return any(stop in text for stop in generation.until)
