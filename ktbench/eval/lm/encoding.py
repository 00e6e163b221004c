"""Texts to tokens, as lm-eval's own `hf` model makes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jinja2
from lm_eval.models.utils import has_bos_prefix
from transformers import PreTrainedTokenizerBase


class Encoder:
    """A tokenizer, and whether texts begin with its first token: None leaves that to the tokenizer.

    Raises ValueError for a tokenizer that knows no end of a text.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, add_bos_token: bool | None = None) -> None:
        if tokenizer.eos_token_id is None:
            raise ValueError("tokenizer: has no token that ends a text (eos_token)")
        self.tokenizer, self._adds_bos = tokenizer, add_bos_token

    @property
    def eos_id(self) -> int:
        """The token that ends a text."""
        found: int = self.tokenizer.eos_token_id
        return found

    @property
    def prefix_id(self) -> int:
        """What stands for an empty context."""
        found: int | None = self.tokenizer.bos_token_id
        return self.eos_id if found is None else found

    def string(self, tokens: Sequence[int], *, special: bool) -> str:
        """The text of tokens, with those that mean something to the model alone or without."""
        return str(self.tokenizer.decode(list(tokens), skip_special_tokens=not special))

    def text(self, text: str, add_special_tokens: bool | None = None) -> list[int]:
        """Tokens of a text to be scored; one that begins as every text should gets no second such token."""
        begins = has_bos_prefix(text, self.string([self.prefix_id], special=True))
        return self._encoded(text, self._special(begins) if add_special_tokens is None else add_special_tokens)

    def prompt(self, text: str, most: int) -> list[int]:
        """The last tokens, `most` at most, of a text to be continued."""
        begins = has_bos_prefix(text, self.tokenizer.bos_token)
        return self._encoded(text, self._special(begins))[-most:] or [self.prefix_id]

    def _special(self, begins: bool) -> bool | None:
        return False if begins else self._adds_bos

    def _encoded(self, text: str, special: bool | None) -> list[int]:
        asked = {} if special is None else {"add_special_tokens": special}
        return list(self.tokenizer.encode(text, **asked))

    def chat(self, messages: list[dict[str, str]], *, answers: bool) -> str:
        """The prompt of a conversation that the model is to answer, or whose last message it is to continue.

        What a system says is left out where the template refuses it.
        """
        try:
            return self._templated(messages, answers)
        except jinja2.exceptions.TemplateError:
            return self._templated([one for one in messages if one["role"] != "system"], answers)

    def _templated(self, messages: list[dict[str, str]], answers: bool) -> str:
        made: Any = self.tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=answers, continue_final_message=not answers
        )
        return str(made)
