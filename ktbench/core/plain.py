"""Dataclasses to plain JSON content and back, checked field by field."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

T = TypeVar("T")


def to_plain(value: Any) -> Any:
    """Dicts, lists, strings, numbers and None that stand for a dataclass."""
    return msgspec.to_builtins(value)


def from_plain(content: Any, kind: type[T]) -> T:
    """The dataclass that plain content stands for.

    Raises ValueError with the path of the first field that is missing, unknown to its type or refused by its class.
    """
    try:
        return msgspec.convert(content, kind)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None
