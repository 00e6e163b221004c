"""The axes of a sweep once overrides have had their say: lists replace them, single values end them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from ktbench.config.lists import Lists
from ktbench.config.precisions import PRECISION_KEYS, precision_name

Content = dict[str, Any]


def overridden(content: Content, keys: Collection[str], lists: Lists) -> Content:
    """The content with the axes that are left: the lists in their order, then those whose key is none of `keys`.

    Where a value of an axis sets several keys that go together, a list or an override of that value keeps them, less
    those that are overridden themselves. What is no axis is left for the spec to refuse.
    """
    axes = content["sweep"]["axes"]
    if not isinstance(axes, dict):
        return content
    found = {key: [_together(key, value, axes.get(key), keys) for value in values] for key, values in lists.items()}
    for key, values in axes.items():
        if key not in keys:
            found[key] = _without(values, keys)
        elif key not in lists and isinstance(alone := _together(key, _at(content, key), values, keys), dict):
            found[key] = [alone]
    return content | {"sweep": content["sweep"] | {"axes": found}}


def _together(key: str, value: Any, values: Any, keys: Collection[str]) -> Any:
    """What goes with a value of an axis, as a mapping; the value itself where nothing does."""
    entries = values if isinstance(values, list) else []
    entry = next((one for one in entries if isinstance(one, Mapping) and one.get(key) == value), {})
    others = {name: one for name, one in entry.items() if name not in keys}
    return {key: value} | others if others else value


def _without(values: Any, keys: Collection[str]) -> Any:
    """Values of an axis, where one sets several keys without those that are overridden."""
    if not isinstance(values, list):
        return values
    return [
        {key: one for key, one in value.items() if key not in keys} if isinstance(value, Mapping) else value
        for value in values
    ]


def _at(content: Mapping[str, Any], key: str) -> Any:
    value: Any = content
    for name in key.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return precision_name(value) if key in PRECISION_KEYS else value
