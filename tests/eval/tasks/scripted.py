"""A model that answers by a script, through the interface of lm-eval."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM

Reply = Callable[[str, Mapping[str, Any]], str]


class ScriptedLM(TemplateLM):
    """Replies with `reply(prompt, generation)`; a continuation is the likelier the nearer `likes` it is."""

    eot_token_id = 0
    max_length = 1 << 20
    tokenizer_name = "bytes"

    def __init__(
        self, reply: Reply = lambda prompt, generation: "", likes: Callable[[str, str], float] | None = None
    ) -> None:
        super().__init__()
        self.reply = reply
        self.likes = likes or by_chance
        self.requests: list[Instance] = []

    def tok_encode(self, string: str, **_: Any) -> list[int]:
        return list(string.encode())

    def generate_until(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[str]:
        self.requests += requests
        return [self.reply(*one.args) for one in requests]

    def loglikelihood(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        self.requests += requests
        return [(self.likes(*one.args), False) for one in requests]

    def _loglikelihood_tokens(self, requests: Any, **_: Any) -> Any:
        raise NotImplementedError

    def loglikelihood_rolling(self, requests: Any, disable_tqdm: bool = False) -> Any:
        raise NotImplementedError

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        text = "".join(f"<{turn['role']}>{turn['content']}" for turn in chat_history)
        return text + ("<assistant>" if add_generation_prompt else "")

    @property
    def prompts(self) -> list[str]:
        return [one.args[0] for one in self.requests]


def by_chance(context: str, continuation: str) -> float:
    """A log-likelihood that depends on the request alone."""
    return -blake2b(f"{context}|{continuation}".encode(), digest_size=1).digest()[0] / 8


def a_number(prompt: str, generation: Mapping[str, Any]) -> str:
    """An answer that depends on the request alone: one of few numbers, so that some are right by chance."""
    chance = blake2b(prompt.encode(), digest_size=1).digest()[0] % 5
    return f"So there are {chance * 3}. The answer is {chance}."
