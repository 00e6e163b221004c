"""A checkpoint's own tokenizer: prompts from texts and conversations, and the bytes that tokens stand for."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2

from ktbench.resources import checkpoint_folder
from ktbench.spec.errors import RequestError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")  # of SentencePiece, for bytes that no other token has
_SPACE = "▁"


class TextTokens:
    """Between text and tokens. Raises ValueError for a tokenizer whose tokens are not bytes of UTF-8.

    Made by `open`. Encoding is for one thread at a time.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, stop_ids: frozenset[int]) -> None:
        self._tokenizer, self.stop_ids = tokenizer, stop_ids
        self._added = dict(tokenizer.added_tokens_decoder)
        self.special_ids = frozenset(tokenizer.all_special_ids) | {i for i, one in self._added.items() if one.special}
        self._pieces = tuple(self._bytes_of_all())

    @classmethod
    def open(cls, path: str) -> TextTokens:
        """Those of the checkpoint `path`; `stop_ids` are the tokens that end an answer by its own configuration.

        Raises RequestError for a tokenizer that cannot be read or used.
        """
        from transformers import AutoTokenizer

        folder = checkpoint_folder(path)
        try:
            tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
            return cls(tokenizer, frozenset(_ending(folder)) | {tokenizer.eos_token_id} - {None})
        except Exception as error:  # the library raises whatever it meets in a damaged file
            raise RequestError(f"model.path={path}: its tokenizer cannot be used: {error}") from None

    @property
    def has_chat(self) -> bool:
        """Whether the tokenizer has a template of conversations."""
        return self._tokenizer.chat_template is not None

    def encode(self, text: str) -> tuple[int, ...]:
        """The prompt of a text; one that begins with the tokenizer's first token gets no second."""
        bos = self._tokenizer.bos_token
        begins = bos is not None and text.startswith(bos)
        return tuple(self._tokenizer.encode(text, add_special_tokens=False) if begins else self._tokenizer.encode(text))

    def chat(self, messages: Sequence[Mapping[str, str]]) -> tuple[int, ...]:
        """The prompt of a conversation that is to be answered. Raises ValueError where the template refuses it."""
        if not self.has_chat:
            raise ValueError("the tokenizer of this model has no chat template, use /v1/completions")
        try:
            text = self._tokenizer.apply_chat_template(
                [dict(one) for one in messages], tokenize=False, add_generation_prompt=True
            )
        except jinja2.TemplateError as error:
            raise ValueError(f"the chat template refuses the messages: {error}") from None
        return tuple(self._tokenizer.encode(str(text), add_special_tokens=False))

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


def _ending(folder: Path) -> list[int]:
    """The tokens that end an answer by a checkpoint's generation_config.json, which it need not have."""
    if not (folder / "generation_config.json").is_file():
        return []
    from transformers import GenerationConfig

    found = GenerationConfig.from_pretrained(folder, local_files_only=True).eos_token_id
    return found if isinstance(found, list) else [] if found is None else [found]


def _levels() -> dict[str, int]:
    """The byte of each letter of byte-level tokens: printable ones stand for themselves, others for 256 on (GPT-2)."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others, letters = (one for one in range(256) if one not in plain), count(256)
    return {chr(one): one for one in plain} | {chr(letter): one for one, letter in zip(others, letters, strict=False)}


_LEVELS = _levels()
