"""Numbers of a Hugging Face configuration, and what holds for all of it: types, bounds, finite values, depth."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

from ktbench.spec.errors import is_utf8

_MOST_LEVELS = 16
_MOST_BITS = 63  # of an integer
_SHOWN = 60  # characters of a value in a message


@dataclass(frozen=True, slots=True)
class Count:
    """A whole number that families call by different keys, of which the first that is set counts, and its bounds.

    `tells` is what cannot be told without it.
    """

    keys: tuple[str, ...]
    most: int
    least: int = 1
    tells: str = "cannot tell the model's shape"


def count_in(config: Mapping[str, Any], count: Count, default: int | None = None) -> int:
    """The number that a configuration has, or the default.

    A list that has it layer by layer must have the same for all. Raises ValueError in one line that names the keys
    where none of them is set and there is no default, or the key and the value which is no such number.
    """
    key = next((key for key in count.keys if config.get(key) is not None), None)
    if key is None:
        if default is None:
            kind, keys = config.get("model_type"), ", ".join(count.keys)
            raise ValueError(f"model configuration of {kind} has none of {keys}: {count.tells}")
        return default
    value = config[key]
    if isinstance(value, list) and value:
        if any(one != value[0] for one in value):
            raise wrong(key, value, "differs from layer to layer")
        value = value[0]
    if type(value) is not int:
        raise wrong(key, value, "must be a whole number")
    if not count.least <= value <= count.most:
        raise wrong(key, value, f"allowed are {count.least} to {count.most}")
    return value


def wrong(key: str, value: Any, why: str) -> ValueError:
    """An error that names a key of a configuration and its value."""
    text = repr(value)
    return ValueError(f"model configuration: {key}={text if len(text) <= _SHOWN else f'{text[:_SHOWN]}...'}: {why}")


def require_plain(config: Any) -> None:
    """Raise ValueError for a configuration that is not plain content which every format and program can hold.

    It is a mapping with a `model_type`, nested at most 16 levels deep; its keys are texts, its numbers finite and
    integers of 64 bits, its texts UTF-8.
    """
    if not isinstance(config, Mapping):
        raise ValueError(f"model configuration: holds {type(config).__name__}, must hold an object")
    for key, value in _entries(config):
        if why := _differs(value):
            raise wrong(key, value, why)
    if not isinstance(config.get("model_type"), str):
        raise ValueError("model configuration: has no model_type, is not a Hugging Face configuration")


def _entries(config: Mapping[Any, Any]) -> Iterator[tuple[str, Any]]:
    """Every key and value by its dotted path, without recursion. Raises ValueError where it is nested too deep."""
    rows: list[tuple[str, Any, int]] = [("", config, 0)]
    while rows:
        path, value, level = rows.pop()
        if level > _MOST_LEVELS:
            raise ValueError(
                f"model configuration: {path.split('.')[0]} is nested more than {_MOST_LEVELS} levels deep"
            )
        if isinstance(value, Mapping):
            for key, one in value.items():
                if not isinstance(key, str):
                    raise wrong(path, key, "keys must be texts")
                yield path, key
                rows.append((f"{path}.{key}".lstrip("."), one, level + 1))
        elif isinstance(value, (list, tuple)):
            rows += [(path, one, level + 1) for one in value]
        else:
            yield path, value


def _differs(value: Any) -> str:
    """What is wrong with a key or a value that is no container; empty for nothing."""
    if isinstance(value, float) and not isfinite(value):
        return "must be finite"
    if isinstance(value, int) and value.bit_length() > _MOST_BITS:
        return "must be a number of 64 bits"
    if isinstance(value, str) and not value.isascii() and not is_utf8(value):
        return "is not UTF-8 text"
    return "" if value is None or isinstance(value, (bool, int, float, str)) else "must be a number or a text"
