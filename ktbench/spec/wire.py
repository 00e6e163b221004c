"""Names as logs hold them: what is renamed in the code keeps its old name there, so that ids and recorded runs last."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from ktbench.spec.features import FEATURES
from ktbench.spec.plain import from_plain, to_plain

T = TypeVar("T")

_FEATURES = {feature.name: feature.letter for feature in FEATURES if feature.letter}
# Field that holds a dataclass -> name of a field of it in the code -> on the wire.
_FIELDS: Mapping[str, Mapping[str, str]] = {"engine": _FEATURES}
# Field that holds a name -> the name in the code -> on the wire.
_VALUES: Mapping[str, Mapping[str, str]] = {"feature": _FEATURES}


def to_wire(value: Any) -> Any:
    """Plain content that stands for a dataclass, by the names of logs."""
    return _renamed(to_plain(value), _FIELDS, _VALUES)


def from_wire(content: Any, kind: type[T]) -> T:
    """The dataclass that content of a log stands for. Raises ValueError as `from_plain`."""
    return from_plain(_renamed(content, _inverse(_FIELDS), _inverse(_VALUES)), kind)


def _inverse(names: Mapping[str, Mapping[str, str]]) -> dict[str, dict[str, str]]:
    return {field: {new: old for old, new in of_field.items()} for field, of_field in names.items()}


def _renamed(content: Any, fields: Mapping[str, Mapping[str, str]], values: Mapping[str, Mapping[str, str]]) -> Any:
    if isinstance(content, (list, tuple)):
        # Samples are long lists of numbers.
        return [_renamed(one, fields, values) for one in content] if _holds_dicts(content) else content
    if not isinstance(content, dict):
        return content
    found = {key: _renamed(value, fields, values) for key, value in content.items()}
    for key in found.keys() & fields.keys():
        if isinstance(found[key], dict):
            found[key] = {fields[key].get(name, name): value for name, value in found[key].items()}
    for key in found.keys() & values.keys():
        if isinstance(found[key], str):
            found[key] = values[key].get(found[key], found[key])
    return found


def _holds_dicts(content: Any) -> bool:
    return any(isinstance(one, (dict, list)) for one in content[:1])
