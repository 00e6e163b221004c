"""IFEval (Zhou et al. 2023, arXiv:2311.07911): its prompts from a local file, and its four accuracies."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ktbench.accuracy.livebench.instructions import check_arguments, follow

Item = TypeVar("Item")


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompt:
    """A prompt and the instructions in it, each with its arguments."""

    key: str
    text: str
    ids: tuple[str, ...]
    kwargs: tuple[Mapping[str, object], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Followed:
    """Which instructions of a prompt one answer follows. What is followed strictly is followed loosely, too."""

    strict: tuple[bool, ...]
    loose: tuple[bool, ...]


def read_prompts(path: Path) -> tuple[Prompt, ...]:
    """The prompts of a JSON Lines file in the layout of its authors: key, prompt, instruction_id_list, kwargs.

    Raises ValueError with file and line for a row that is malformed, asks what cannot be checked or has the key of
    another, and for a file without rows.
    """
    prompts: dict[str, Prompt] = {}
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            prompt = prompt_of(json.loads(line))
            if prompt.key in prompts:
                raise ValueError(f"key={prompt.key}: an earlier row has it, too")
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}:{number}: {error}") from None
        prompts[prompt.key] = prompt
    if not prompts:
        raise ValueError(f"{path}: has no rows")
    return tuple(prompts.values())


def prompt_of(row: object) -> Prompt:
    """The prompt of a row; fields beyond the four are left alone. Raises ValueError that says which field is wrong."""
    if not isinstance(row, Mapping):
        raise ValueError("must be an object with key, prompt, instruction_id_list and kwargs")
    key, text = row.get("key"), row.get("prompt")
    if not isinstance(key, int | str) or isinstance(key, bool):
        raise ValueError(f"key={key!r}: must be a number or text")
    if not isinstance(text, str) or not text.strip():
        raise ValueError("prompt: must be text that is not blank")
    ids, kwargs = _listed(row, "instruction_id_list", str), _listed(row, "kwargs", dict)
    check_arguments(ids, kwargs)
    return Prompt(key=str(key), text=text, ids=tuple(ids), kwargs=tuple(kwargs))


def judge(prompt: Prompt, answer: str) -> Followed:
    """Loosely means: the answer follows as it stands, or without its first line, its last line or all `*`."""
    each = [follow(prompt.ids, prompt.kwargs, variant) for variant in loosened(answer)]
    return Followed(strict=each[0], loose=tuple(map(any, zip(*each, strict=True))))


def loosened(answer: str) -> tuple[str, ...]:
    """The answer and, each once, what is left of it without first or last line, with `*` and without."""
    lines = answer.split("\n")
    parts = (answer, *("\n".join(some).strip() for some in (lines[1:], lines[:-1], lines[1:-1])))
    return tuple(dict.fromkeys(text for part in parts for text in (part, part.replace("*", ""))))


def prompt_accuracy(followed: Sequence[Sequence[bool]]) -> float:
    """The fraction of prompts of which all instructions are followed, 0 to 1."""
    return sum(map(all, followed)) / len(followed)


def instruction_accuracy(followed: Sequence[Sequence[bool]]) -> float:
    """The fraction of all instructions that are followed, 0 to 1."""
    return sum(map(sum, followed)) / sum(map(len, followed))


def _listed(row: Mapping[str, object], field: str, kind: type[Item]) -> list[Item]:
    """A list of that kind that is not empty."""
    items = row.get(field)
    if not isinstance(items, list) or not items or not all(isinstance(item, kind) for item in items):
        raise ValueError(f"{field}: must be a list of {'texts' if kind is str else 'objects'} that is not empty")
    return items
