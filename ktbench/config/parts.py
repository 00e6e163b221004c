"""Composes a request: once, or once for each part of a sweep that names parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ktbench.config.axes import overridden
from ktbench.config.compose import compose_once, group_names
from ktbench.config.lists import Words, key_of, split_lists
from ktbench.core.errors import RequestError
from ktbench.core.sweep import part_name

# Of the overrides of a sweep's own keys these are the run's; the others are for each of its parts.
_OF_THE_RUN = ("sweep.parts", "sweep.name", "sweep.title")


@dataclass(frozen=True, kw_only=True, slots=True)
class Composed:
    """Plain content: what holds for the run as a whole, and each part by its name, "" where it is the only one."""

    run: dict[str, Any]
    parts: dict[str, dict[str, Any]]


def compose(overrides: Sequence[str]) -> Composed:
    """Plain content of the composed configuration.

    Every part is composed with the same overrides, which win over what the part sets: an axis whose key is overridden
    is not varied, and a list of values for a key is an axis before all others. Raises RequestError in one line for an
    override that does not parse, an unknown group option or key, a list that makes no axis, and a part that has parts
    itself.
    """
    words = split_lists(overrides, group_names())
    run = compose_once([word for word in words.overrides if not _is_for_parts(word)])
    ablations = run["sweep"]["parts"]
    if not isinstance(ablations, list):
        raise RequestError(f"sweep.parts={ablations}: must be a list of ablations, such as [decode,prefill]")
    if not ablations:
        alone = _overridden(compose_once(words.overrides), words)
        return Composed(run=alone, parts={"": alone})
    return Composed(run=run, parts={part_name(str(name)): _part(str(name), words) for name in ablations})


def _part(ablation: str, words: Words) -> dict[str, Any]:
    own = [word for word in words.overrides if key_of(word) not in ("ablation", *_OF_THE_RUN)]
    content = compose_once([f"+ablation={ablation}", *own])
    if content["sweep"]["parts"]:
        raise RequestError(f"sweep.parts: {ablation} has parts itself, name those instead")
    return _overridden(content, words)


def _overridden(content: dict[str, Any], words: Words) -> dict[str, Any]:
    return overridden(content, {key_of(word) for word in words.overrides}, words.lists)


def _is_for_parts(word: str) -> bool:
    return word.startswith("sweep.") and key_of(word) not in _OF_THE_RUN
