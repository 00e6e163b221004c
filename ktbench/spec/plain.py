"""Dataclasses to plain JSON content and back, checked field by field."""

from __future__ import annotations

import re
from typing import Any, TypeVar, get_args, get_type_hints

import msgspec

T = TypeVar("T")


def to_plain(value: Any) -> Any:
    """Dicts, lists, strings, numbers and None that stand for a dataclass."""
    return msgspec.to_builtins(value)


def from_plain(content: Any, kind: type[T]) -> T:
    """The dataclass that plain content stands for.

    Raises ValueError with the path of the first field that is missing or of the wrong type, and the allowed values
    where they can be listed; what a class refuses at construction is passed on in its own words.
    """
    try:
        return msgspec.convert(content, kind)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, ValueError):
            raise ValueError(str(error.__cause__)) from None
        raise ValueError(_said(str(error), kind)) from None


def _said(message: str, kind: type[Any]) -> str:
    """`engine.avx512: expected bool, got str`, with the allowed values of an enumeration."""
    what, _, where = message.replace("`", "").partition(" - at $.")
    where = where.removeprefix("spec.")
    allowed = _allowed(kind, re.split(r"[.\[]", where)) if "enum" in what else ()
    listed = f"; allowed are {', '.join(map(str, allowed))}" if allowed else ""
    return f"{where}: {what[0].lower()}{what[1:]}{listed}" if where else what


def _allowed(kind: Any, path: list[str]) -> tuple[Any, ...]:
    for name in path:
        kind = get_type_hints(kind).get(name) if isinstance(kind, type) else None
    return tuple(one for option in get_args(kind) for one in _options(option))


def _options(option: Any) -> tuple[Any, ...]:
    """A value of an enumeration; of a union what each member allows."""
    if isinstance(option, type):
        return () if option is type(None) else (f"every {option.__name__}",)
    return get_args(option) or (option,)
