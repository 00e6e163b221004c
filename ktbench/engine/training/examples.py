"""Prompts and completions to fine-tune on, one JSON object a line; one in eight is held out for evaluation."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b

from ktbench.resources import checkpoint_folder, read_text
from ktbench.spec.wire import from_plain

_MOST_BYTES = 1 << 28
_HELD_OUT_OF = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Example:
    """A prompt and what the model is to continue it with."""

    prompt: str
    completion: str

    def __post_init__(self) -> None:
        for name in ("prompt", "completion"):
            if not getattr(self, name):
                raise ValueError(f"{name}: must not be empty")

    @property
    def is_held_out(self) -> bool:
        """Whether it is for evaluation alone: a hash of the prompt says so, whatever seed draws batches."""
        drawn = blake2b(self.prompt.encode(), digest_size=8).digest()
        return int.from_bytes(drawn, "big") % _HELD_OUT_OF == 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Examples:
    """Those of a file that batches are drawn from, and those that are held out, both in its order."""

    training: tuple[Example, ...]
    held_out: tuple[Example, ...]


def read_examples(file: str) -> Examples:
    """The examples of a file; `evals/NAME` is one that ships, wherever ktbench was started.

    Raises ValueError, which names the line, for what is no example, and for too few of them.
    """
    where = f"workload.examples={file}"
    found = list(_examples(where, read_text(checkpoint_folder(file), where, _MOST_BYTES)))
    training = tuple(one for one in found if not one.is_held_out)
    held_out = tuple(one for one in found if one.is_held_out)
    if not training or not held_out:
        raise ValueError(f"{where}: {len(found)} examples are too few to hold some out, about one in {_HELD_OUT_OF}")
    return Examples(training=training, held_out=held_out)


def _examples(where: str, text: str) -> Iterator[Example]:
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            yield from_plain(json.loads(line), Example)
        except (ValueError, RecursionError) as error:
            why = "not JSON" if isinstance(error, json.JSONDecodeError | RecursionError) else str(error)
            raise ValueError(f"{where} line {number}: {why}") from None
