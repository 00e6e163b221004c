"""Composes a request: once, or once for each part of a sweep that names parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ktbench.config.compose import compose_once
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
    is not varied. Raises RequestError in one line for an override that does not parse, an unknown group option or key,
    and a part that has parts itself.
    """
    run = compose_once([word for word in overrides if not _is_for_parts(word)])
    ablations = run["sweep"]["parts"]
    if not isinstance(ablations, list):
        raise RequestError(f"sweep.parts={ablations}: must be a list of ablations, such as [decode,prefill]")
    if not ablations:
        alone = _pinned(compose_once(overrides), overrides)
        return Composed(run=alone, parts={"": alone})
    return Composed(run=run, parts={part_name(str(name)): _part(str(name), overrides) for name in ablations})


def _part(ablation: str, overrides: Sequence[str]) -> dict[str, Any]:
    words = [word for word in overrides if _key(word) not in ("ablation", *_OF_THE_RUN)]
    content = compose_once([f"+ablation={ablation}", *words])
    if content["sweep"]["parts"]:
        raise RequestError(f"sweep.parts: {ablation} has parts itself, name those instead")
    return _pinned(content, overrides)


def _is_for_parts(word: str) -> bool:
    return word.startswith("sweep.") and _key(word) not in _OF_THE_RUN


def _key(word: str) -> str:
    return word.partition("=")[0].lstrip("+")


def _pinned(content: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """The content without the axes whose key is overridden; what is not an axis is left for the spec to refuse."""
    keys, axes = {_key(word) for word in overrides}, content["sweep"]["axes"]
    if not isinstance(axes, dict):
        return content
    varied = {key: _without(values, keys) for key, values in axes.items() if key not in keys}
    return content | {"sweep": content["sweep"] | {"axes": varied}}


def _without(values: Any, keys: set[str]) -> Any:
    """Values of an axis, where one sets several keys without those that are overridden."""
    if not isinstance(values, list):
        return values
    return [
        {key: one for key, one in value.items() if key not in keys} if isinstance(value, Mapping) else value
        for value in values
    ]
