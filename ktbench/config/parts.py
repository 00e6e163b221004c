"""Composes a request: once, or once for each part of a sweep that names parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from ktbench.config.axes import overridden, with_nodes
from ktbench.config.compose import compose_once, group_names
from ktbench.config.lists import Words, key_of, split_lists
from ktbench.config.machine import ReadLocal, no_local
from ktbench.spec.errors import RequestError
from ktbench.spec.sweep import part_name

# Of the overrides of a sweep's own keys these are the run's; the others are for each of its parts.
_OF_THE_RUN = ("sweep.parts", "sweep.name", "sweep.title")


@dataclass(frozen=True, kw_only=True, slots=True)
class Composed:
    """Plain content: what holds for the run as a whole, and each part by its name, "" where it is the only one."""

    run: dict[str, Any]
    parts: dict[str, dict[str, Any]]


def compose(overrides: Sequence[str], read_local: ReadLocal = no_local) -> Composed:
    """Plain content of the composed configuration. `read_local` gives the description behind `machine=local`.

    Every part is composed with the same overrides, which win over what the part sets: an axis whose key is overridden
    is not varied, and a list of values for a key is an axis before all others. Raises RequestError in one line for an
    override that does not parse, an unknown group option or key, a list that makes no axis, and a part that has parts
    itself.
    """
    words = split_lists(overrides, group_names())
    run = compose_once([word for word in words.overrides if not _is_for_parts(word)], read_local)
    ablations = run["sweep"]["parts"]
    if not isinstance(ablations, list):
        raise RequestError(f"sweep.parts={ablations}: must be a list of ablations, such as [decode,prefill]")
    if not ablations:
        alone = _content(words.overrides, words, read_local)
        return Composed(run=alone, parts={"": alone})
    return Composed(run=run, parts={part_name(str(name)): _part(str(name), words, read_local) for name in ablations})


def _part(ablation: str, words: Words, read_local: ReadLocal) -> dict[str, Any]:
    own = [word for word in words.overrides if key_of(word) not in ("ablation", *_OF_THE_RUN)]
    content = _content([f"+ablation={ablation}", *own], words, read_local)
    if content["sweep"]["parts"]:
        raise RequestError(f"sweep.parts: {ablation} has parts itself, name those instead")
    return content


def _content(overrides: Sequence[str], words: Words, read_local: ReadLocal) -> dict[str, Any]:
    """What overrides compose to, with the axes that are left, and models and machines on them by their nodes."""

    @cache
    def node_of(group: str, name: str) -> Any:
        others = [word for word in overrides if key_of(word) != group]
        return compose_once([*others, f"{group}={name}"], read_local)[group]

    keys = {key_of(word) for word in words.overrides}
    return with_nodes(overridden(compose_once(overrides, read_local), keys, words.lists), node_of)


def _is_for_parts(word: str) -> bool:
    return word.startswith("sweep.") and key_of(word) not in _OF_THE_RUN
