"""The axes of a sweep after overrides: lists replace axes, single values remove them.

Models and machines are on axes by name until `with_nodes` replaces the names by their nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from ktbench.config.lists import PRECISION_KEYS, WHOLE_GROUPS, Lists, precision_name
from ktbench.spec.errors import RequestError
from ktbench.spec.sweep import axis_changes

Content = dict[str, Any]
# The composed node of a group by the group and the name of an option.
NodeOf = Callable[[str, str], Any]


def overridden(content: Content, keys: Collection[str], lists: Lists) -> Content:
    """The content with the remaining axes: the lists in their order, then those whose key is not one of `keys`.

    Where a value of an axis sets several keys together, a list or an override of that value keeps those of the
    others that are not overridden. Invalid axes are left for the spec to refuse.
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
    """A value of an axis with the keys that it sets together, as a mapping; the value itself without others."""
    entries = values if isinstance(values, list) else []
    entry = next((one for one in entries if isinstance(one, Mapping) and one.get(key) == value), {})
    others = {name: one for name, one in entry.items() if name not in keys}
    return {key: value} | others if others else value


def _without(values: Any, keys: Collection[str]) -> Any:
    """Values of an axis, without overridden keys where one sets several."""
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
    if key in WHOLE_GROUPS:
        return value["name"]
    return precision_name(value) if key in PRECISION_KEYS else value


def with_nodes(content: Content, node_of: NodeOf) -> Content:
    """The content with the nodes of models and machines where values of axes name them.

    Raises RequestError for what is no name.
    """

    def node(key: str, value: Any) -> Any:
        if key not in WHOLE_GROUPS:
            return value
        if not isinstance(value, str):
            raise RequestError(f"sweep.axes: {key}: {value} must be a name, as {key}=NAME takes it")
        return node_of(key, value)

    axes = mapped_axes(content["sweep"]["axes"], lambda found: {key: node(key, value) for key, value in found.items()})
    return content | {"sweep": content["sweep"] | {"axes": axes}}


def mapped_axes(axes: Any, make: Callable[[Content], Content]) -> Any:
    """Axes with what `make` makes of the spec changes of each value; invalid axes are left for the spec to refuse."""
    if not isinstance(axes, dict):
        return axes
    return {
        axis: [_mapped(axis, value, make) for value in values] if isinstance(values, list) else values
        for axis, values in axes.items()
    }


def _mapped(axis: str, value: Any, make: Callable[[Content], Content]) -> Any:
    """Models and machines are mappings themselves, and are therefore always set by their keys."""
    changes = make(axis_changes(axis, value))
    return changes if isinstance(value, Mapping) or axis in WHOLE_GROUPS else changes[axis]


_DEVICE = "engine.device"


# With a GPU the roles are separate anyway: cores for each role are for machines without one.
_WITH_GPU = {"device": "cuda", "roles": "shared", "device_threads": None}


def default_device(content: Mapping[str, Any]) -> dict[str, Any]:
    """The content with a device for every machine (plain content of a MachineSpec or None), on axes too.

    A device that is set, or varied by an axis, stays.
    """
    engine, sweep = content["engine"], content["sweep"]
    if engine["device"] is not None:
        return dict(content)
    if not (isinstance(sweep["axes"], dict) and _DEVICE in sweep["axes"]):
        sweep = sweep | {"axes": mapped_axes(sweep["axes"], lambda changes: _with_device(changes, engine))}
    return {**content, "engine": engine | _given(content["machine"], engine), "sweep": sweep}


def _with_device(changes: dict[str, Any], engine: Mapping[str, Any]) -> dict[str, Any]:
    if "machine" not in changes:
        return changes
    given = _given(changes["machine"], engine)
    return {f"engine.{key}": value for key, value in given.items() if key == "device" or value != engine[key]} | changes


def _given(machine: Mapping[str, Any] | None, engine: Mapping[str, Any]) -> dict[str, Any]:
    has_gpu = machine is not None and machine["gpu"] is not None
    return _WITH_GPU if has_gpu else {"device": "cpu", **{key: engine[key] for key in ("roles", "device_threads")}}
