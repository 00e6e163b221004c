"""A checkpoint's own tokenizer: prompts from texts and conversations, and the bytes that tokens stand for."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from inspect import signature
from itertools import count
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ktbench.engine.checkpoint import checkpoint_config, generation_config
from ktbench.engine.serving.requests import Sampling
from ktbench.resources import checkpoint_folder
from ktbench.spec.errors import RequestError, one_line, refusing

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")  # of SentencePiece, for bytes that no other token has
_SPACE = "▁"
_DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


class TextTokens:
    """Between text and tokens. Raises ValueError for a tokenizer whose tokens are not bytes of UTF-8.

    `defaults` are values of `Sampling` for requests that name none. Made by `open`. Several threads may encode.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        stop_ids: frozenset[int],
        defaults: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        self._tokenizer, self.stop_ids, self.defaults = tokenizer, stop_ids, defaults
        self._added = dict(tokenizer.added_tokens_decoder)
        self.special_ids = frozenset(tokenizer.all_special_ids) | {i for i, one in self._added.items() if one.special}
        self._pieces = tuple(self._bytes_of_all())
        self._longest = max(map(len, self._pieces))
        self._encoder = tokenizer.backend_tokenizer
        self._encoder.no_truncation()
        self._encoder.no_padding()

    @classmethod
    def open(cls, path: str) -> TextTokens:
        """Those of the checkpoint `path`, whose own configuration says what ends an answer and how one is sampled.

        Raises RequestError for a tokenizer that cannot be read or used.
        """
        from transformers import AutoTokenizer

        folder = checkpoint_folder(path)
        with refusing():
            stop_ids, defaults = _ending(path), _defaults(path)
        try:
            tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
            return cls(tokenizer, stop_ids | ({tokenizer.eos_token_id} - {None}), defaults)
        except Exception as error:  # the library raises whatever it meets in a damaged file
            raise RequestError(f"model.path={path}: its tokenizer cannot be used: {error}") from None

    @property
    def has_chat(self) -> bool:
        """Whether the tokenizer has a template of conversations."""
        return self._tokenizer.chat_template is not None

    def encode(self, text: str) -> tuple[int, ...]:
        """The prompt of a text; one that begins with the tokenizer's first token gets no second."""
        bos = self._tokenizer.bos_token
        return self._ids(text, adds=bos is None or not text.startswith(str(bos)))

    def chat(self, messages: Sequence[Mapping[str, str]], options: Mapping[str, Any] | None = None) -> tuple[int, ...]:
        """The prompt of a conversation that is to be answered, by the template with `options` as further variables.

        Raises ValueError where the template refuses the conversation or fails.
        """
        if not self.has_chat:
            raise ValueError("the tokenizer of this model has no chat template, use /v1/completions")
        make = self._tokenizer.apply_chat_template
        if taken := sorted(set(options or {}) & {*signature(make).parameters}):
            raise ValueError(f"the chat template is not given {taken[0]} by a request")
        try:
            text = make(
                [dict(message) for message in messages], tokenize=False, add_generation_prompt=True, **(options or {})
            )
        except Exception as error:  # a template is a program, which raises whatever it meets
            raise ValueError(f"the chat template refuses the messages: {one_line(str(error))}") from None
        return self._ids(str(text), adds=False)

    def chat_reads(self, variable: str) -> bool:
        """Whether the template of conversations has a variable of this name."""
        template = self._tokenizer.get_chat_template() if self.has_chat else ""
        return re.search(rf"\b{re.escape(variable)}\b", template) is not None

    def least(self, text: str) -> int:
        """Fewer tokens a text cannot have; found without encoding it."""
        return len(text) // max(1, self._longest)

    def count(self, text: str) -> int:
        """Tokens of a part of a text."""
        return len(self._ids(text, adds=False))

    def _ids(self, text: str, *, adds: bool) -> tuple[int, ...]:
        """Tokens of a text, with what the tokenizer adds to one. A batch leaves the GIL to other threads."""
        (found,) = self._encoder.encode_batch_fast([text], add_special_tokens=adds)
        return tuple(found.ids)

    def piece(self, token: int) -> bytes:
        """The bytes of a token, none of one that has no text."""
        return self._pieces[token] if 0 <= token < len(self._pieces) else b""

    def shown(self, token: int) -> bytes:
        """The bytes that a token adds to an answer: none where it means something to the model alone."""
        return b"" if token in self.special_ids else self.piece(token)

    def text(self, tokens: Sequence[int]) -> str:
        """What tokens of a prompt stand for, those that mean something to the model alone by their names."""
        return b"".join(map(self.piece, tokens)).decode(errors="replace")

    def offsets(self, text: str, tokens: Sequence[int]) -> list[int]:
        """Where each token of a text begins in it, in characters; what the tokenizer adds to a text has no width."""
        raw, utf8 = text.encode(errors="replace"), codecs.getincrementaldecoder("utf-8")(errors="replace")
        found, begins, characters = [], 0, 0
        for token in tokens:
            piece = self._piece_at(raw, begins, token)
            found.append(min(characters, len(text)))
            begins, characters = begins + len(piece), characters + len(utf8.decode(piece))
        return found

    def _piece_at(self, raw: bytes, begins: int, token: int) -> bytes:
        """The bytes of a token in a text. A tokenizer may add tokens to it, and a space to its first word."""
        piece = self.piece(token)
        if raw.startswith(piece, begins):
            return piece
        if token in self.special_ids:
            return b""
        bare = piece.lstrip(b" ")
        return bare if bare and raw.startswith(bare, begins) else piece

    def _bytes_of_all(self) -> Iterator[bytes]:
        bytes_of = self._by_level if "ByteLevel" in self._decoders else self._by_fallback
        if not {"ByteLevel", "ByteFallback"} & self._decoders:
            raise ValueError(
                "the tokenizer is neither byte-level nor has tokens for bytes, its text cannot be streamed"
            )
        size = max(len(self._tokenizer), 1 + max(self._added, default=-1))
        for i, token in enumerate(self._tokenizer.convert_ids_to_tokens(list(range(size)))):
            yield b"" if token is None else self._added[i].content.encode() if i in self._added else bytes_of(token)

    @cached_property
    def _decoders(self) -> set[str]:
        """The kinds of steps in which the tokenizer makes text of tokens."""
        backend = getattr(self._tokenizer, "backend_tokenizer", None)
        decoder = json.loads(backend.to_str())["decoder"] if backend is not None else None
        parts: list[dict[str, Any]] = [] if decoder is None else decoder.get("decoders", [decoder])
        return {part["type"] for part in parts}

    def _by_level(self, token: str) -> bytes:
        known = _LEVELS.keys() >= set(token)
        return bytes(_LEVELS[letter] for letter in token) if known else token.encode()

    @staticmethod
    def _by_fallback(token: str) -> bytes:
        byte = _BYTE.fullmatch(token)
        return bytes([int(byte[1], 16)]) if byte else token.replace(_SPACE, " ").encode()


def _ending(path: str) -> frozenset[int]:
    """The tokens that end an answer by a checkpoint's generation_config.json, or by its config.json."""
    answers = generation_config(path)
    found = None if answers is None else answers.eos_token_id
    if found is None:
        config = checkpoint_config(path)
        found = config.get("eos_token_id", (config.get("text_config") or {}).get("eos_token_id"))
    return frozenset(found if isinstance(found, list) else [] if found is None else [found])


def _defaults(path: str) -> dict[str, float]:
    """How a checkpoint's generation_config.json samples, as far as it says. Raises ValueError."""
    answers = generation_config(path)
    found = {name: getattr(answers, name, None) for name in _DEFAULTS}
    given = {name: value for name, value in found.items() if value is not None}
    try:
        Sampling(**given)
    except (TypeError, ValueError) as error:
        raise ValueError(f"model.path={path}: generation_config.json: {error}") from None
    return given


def _levels() -> dict[str, int]:
    """The byte of each letter of byte-level tokens: printable ones stand for themselves, others for 256 on (GPT-2)."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others, letters = (one for one in range(256) if one not in plain), count(256)
    return {chr(one): one for one in plain} | {chr(letter): one for one, letter in zip(others, letters, strict=False)}


_LEVELS = _levels()
